"""Continuous batching played on lengths alone, coarsely enough for hundreds of deployments in a plan.

``batching`` counts every block of every sequence; here sequences that decode are one sum of tokens, and steps between
two events (an end, an arrival, a full pool) are taken together, each as long as the middle one. The rules are
``SchedulingRules``'.
"""

from __future__ import annotations

import math
from functools import partial
from operator import itemgetter
from typing import Final, NamedTuple

from kvplan.estimate.speed.queueing.admission import Chunk, next_chunks
from kvplan.estimate.speed.queueing.arrivals import NEVER, Arrivals
from kvplan.estimate.speed.queueing.figures import PlayedFigures, of_groups, played_figures
from kvplan.estimate.speed.queueing.instance import Group, Sequence
from kvplan.estimate.speed.queueing.loads import PlayedLoad
from kvplan.estimate.speed.queueing.prefix_cache import PrefixCache
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.queueing.steps import step_of
from kvplan.estimate.speed.simulation.interface import GroupClock, StepClock
from kvplan.estimate.speed.steps.group_steps import AttendingStep

_SOON: Final = 1e-6
"""Seconds: shorter than any step."""


class GroupLoad(NamedTuple):
    """What a step of one group does, in the words of ``StepClock``."""

    num_tokens: int
    num_sequences: int
    num_sampled: int
    num_kv_tokens: int
    num_pairs: float


class DecodeSteps(NamedTuple):
    """Steps that only decode, of ``seconds`` each."""

    steps: int
    seconds: float


class InstancePlay:
    """now: the end of the last step, in seconds. composed_at: when that step began, and with it the latest moment at
    which the next one could be composed ahead. since_look: steps since the engine took in what had come."""

    def __init__(
        self, load: PlayedLoad, rules: SchedulingRules, clock: StepClock, arrivals: Arrivals | None = None
    ) -> None:
        self._load, self._rules, self._clock = load, rules, clock
        self._groups = self._new_groups()
        self._arrivals = Arrivals(load, rules.front_end) if arrivals is None else arrivals
        self._decoding_steps: dict[tuple[int, int], AttendingStep] = {}
        self._unseen: list[Sequence] = []
        self._last = load.num_requests - load.num_cooldowns
        self._num_counted = 0
        self._since_look = 0
        self.max_running = 0
        self._now = self._composed_at = 0.0

    def _new_groups(self) -> list[Group]:
        rules = self._rules
        late = int(rules.streams_late > 0)
        return [
            Group(
                rules.pool_tokens,
                self._load.cached_tokens,
                late,
                self._cache(),
                rules.rows_per_sequence,
                rules.tokens_per_step,
            )
            for _ in range(rules.num_groups)
        ]

    def begin(self) -> None:
        """Start those that are in the midst of their answers."""
        if self._load.num_running:
            self._start_in_progress()

    def run(self) -> None:
        """Until all that count have ended."""
        self.begin()
        self._arrivals.begin()
        if self._load.num_running:
            for number, group in enumerate(self._groups):
                if group.cache is not None:
                    past = self._arrivals.past(number, len(self._groups))
                    group.cache.let_go_before(past, group.num_held)
        while self._num_counted < self._last:
            self._go_on()

    def advance(self, until: float) -> None:
        """Until then; a step that is under way is taken to its end."""
        while self._now < until:
            self._go_on()

    def _go_on(self) -> None:
        """One step, several that are alike, or to the next request where none is in hand."""
        if not self._send():
            self._now = self._composed_at = self._arrivals.next_event()
            return
        chunks = self._next_chunks()
        if chunks is not None:
            self._read(chunks)
        else:
            self._take_steps(self._alike_until(self._next_arrival()))

    def _next_chunks(self) -> list[list[Chunk]] | None:
        """What each group reads in the next step; None where that only decodes."""
        for group in self._groups:
            if group.reading or group.waiting:
                chunks = [next_chunks(each, self._rules) for each in self._groups]
                return chunks if any(chunks) else None
        return None

    def earliest_end(self) -> float:
        """Before which no request ends: after the decode steps of the first, or within the next step where one is read
        or comes."""
        comes = self._arrivals.next_handing_over()
        if any(group.reading or group.waiting for group in self._groups):
            return self._now + _SOON
        decoding = [group for group in self._groups if group.num_decoding]
        if not decoding:
            return max(comes, self._now) + _SOON
        steps = min(group.steps_to_next_end for group in decoding)
        return min(self._now + steps * self._decode_seconds(decoding, 1), max(comes, self._now) + _SOON)

    def _cache(self) -> PrefixCache | None:
        sharing = self._load.sharing
        if sharing is None:
            return None
        rules = self._rules
        return PrefixCache(sharing, rules.pool_tokens, rules.hit_tokens, rules.dropped_tokens)

    def figures(self) -> PlayedFigures:
        counted = self._arrivals.requests[self._load.num_warmups : self._last]
        return played_figures(counted, self.num_preemptions, self.max_running)

    @property
    def num_preemptions(self) -> int:
        return sum(group.num_preemptions for group in self._groups)

    @property
    def _num_in_hand(self) -> int:
        groups = self._groups
        return groups[0].num_in_hand if len(groups) == 1 else sum([group.num_in_hand for group in groups])

    def _emptiest(self) -> Group:
        """The group that is sent the next request: vLLM counts those in flight of each (DPLBAsyncMPClient)."""
        return min(self._groups, key=lambda group: group.num_in_hand)

    def _start_in_progress(self) -> None:
        """They decode already, at places of their answers that are evenly spaced."""
        number = self._load.num_running
        for index in range(min(number, self._rules.max_num_seqs * self._rules.num_groups)):
            sequence, group = self._arrivals.send_running(), self._emptiest()
            answer = sequence.num_left
            done = min(max(round(answer * (index + 0.5) / number), 1), max(answer - 1, 1))
            sequence.known += done - 1
            sequence.num_left -= done - 1
            group.look_up(sequence)
            group.start(sequence)
            group.hold(sequence, sequence.known - sequence.computed)
            sequence.request.first = self._now
            group.first_token(sequence)
        for group in self._groups:
            group.make_room()

    def _send(self) -> bool:
        """The engine takes in what came before the coming step was composed, where it looks. Return whether it has any
        request.
        """
        self._arrivals.send(self._now)
        in_hand = self._num_in_hand
        if in_hand and self._since_look < self._rules.recv_interval:
            return True
        self._since_look = 0
        taken = self._arrivals.take(self._composed_at if self._rules.schedules_ahead and in_hand else self._now)
        for sequence in taken:
            self._emptiest().waiting.append(sequence)
        return in_hand + len(taken) > 0

    def _spend(self, seconds: float, steps: int) -> None:
        """``steps`` of ``seconds`` each."""
        self._composed_at = self._now + seconds * (steps - 1)
        self._now += seconds * steps

    def _seconds(self, loads: list[GroupLoad]) -> float:
        """Return the duration of one step that reads prompts: that of the group with the most tokens or query-key
        pairs."""
        if len(loads) == 1:
            return self._clock.seconds(*loads[0])
        clock, met = self._clock, sum(load.num_tokens for load in loads)
        assert isinstance(clock, GroupClock), "steps of several groups"
        fullest = {max(loads), max(loads, key=lambda load: load.num_pairs)}
        return max(clock.seconds_beside(met, *load) for load in fullest)

    def _read(self, chunks: list[list[Chunk]]) -> None:
        """One step in which the groups read their ``chunks``, and decode beside them where the rules mix both."""
        self.max_running = max(self.max_running, sum([group.num_running for group in self._groups]))
        decoding = [
            0 if self._rules.prompts_first and own else group.num_decoding
            for group, own in zip(self._groups, chunks, strict=True)
        ]
        rows = self._rules.rows_per_sequence
        loads, done = [], []
        for group, number, own in zip(self._groups, decoding, chunks, strict=True):
            read = _hold(group, own)
            loads.append(_load_of(group, number, own, rows, len(read)))
            done.append(read)
        seconds = self._seconds(loads)
        if self._rules.num_stages > 1:
            for group, own, number, load in zip(self._groups, chunks, decoding, loads, strict=True):
                self._note_stages(group, own, number, seconds, load)
        begun = self._now
        self._note_steps(1, sum([load.num_tokens for load in loads]))
        self._since_look = self._rules.recv_interval
        self._spend(seconds, 1)
        num_tokens = sum(decoding) * self._rules.tokens_per_step + sum(map(len, done))
        streamed = self._arrivals.stream(self._now, self._now, 1, num_tokens)
        self._see_first_tokens(min(streamed, begun + self._rules.streams_late))
        for group, number, read in zip(self._groups, decoding, done, strict=True):
            group.decode(1 if number else 0)
            for sequence in read:
                group.first_token(sequence)
            self._unseen += [sequence for sequence in read if not sequence.request.first]
        if not self._rules.streams_late:
            self._see_first_tokens(streamed)
        self._end_step(streamed)

    def _note_stages(self, group: Group, chunks: list[Chunk], decoding: int, seconds: float, load: GroupLoad) -> None:
        """What the chunks that end prompts still pass when the step that reads ``chunks`` ends after ``seconds``.

        A step of several stages is one pass of all micro-batches, each with its share of the work. But a chunk is in
        one of them, whole, which begins behind those before it and passes one stage after the other.
        """
        if not chunks:
            return
        stages, held = self._rules.num_stages, int(group.decoding_tokens) + decoding if decoding else 0
        read = sum(number for _, number in chunks)
        in_batch = min(read, self._rules.max_num_batched_tokens // stages)
        full = in_batch * stages / read  # a pass in which every micro-batch has as much to read as those of this one
        tokens = self._rules.rows_per_sequence * decoding + in_batch * stages
        sequences = decoding + stages
        kv_tokens, pairs = held + round(full * (load.num_kv_tokens - held)), held + full * (load.num_pairs - held)
        whole = self._clock.seconds(tokens, sequences, sequences, kv_tokens, pairs)
        begun = 0
        for sequence, number in chunks:
            begun += number
            if sequence.computed >= sequence.known and not sequence.request.first:
                passed = math.ceil(begun / in_batch) + stages - 1
                sequence.request.in_stages = max(passed * whole / stages - seconds, 0.0)

    def _see_first_tokens(self, streamed: float) -> None:
        """Note the first tokens that clients were still to see."""
        if self._unseen:
            for sequence in self._unseen:
                sequence.request.first = streamed
            self._unseen.clear()

    @property
    def _decoding(self) -> list[Group]:
        """Groups in which a sequence decodes; a single group does in a step that decodes."""
        groups = self._groups
        return groups if len(groups) == 1 else [group for group in groups if group.num_decoding]

    def _alike_until(self, event: float) -> DecodeSteps:
        """Return the decode steps that differ in lengths only: until a sequence ends, the pool may be full, or
        ``event``, in whose step they end. Those of an engine that looks seldom end at its next look.
        """
        decoding = self._decoding
        steps = max(min([min(group.steps_to_next_end, group.steps_that_fit()) for group in decoding]), 1)
        if self._rules.recv_interval > 1 and event < NEVER:
            steps = min(steps, max(self._rules.recv_interval - self._since_look, 1))
            return DecodeSteps(steps, self._decode_seconds(decoding, steps))
        return self._cut(DecodeSteps(steps, self._decode_seconds(decoding, steps)), event)

    def _cut(self, alike: DecodeSteps, event: float) -> DecodeSteps:
        """Return those of ``alike`` up to the one in which ``event`` is."""
        steps, seconds = alike
        if self._now + steps * seconds <= event:
            return alike
        fewer = max(min(steps, math.ceil((event - self._now) / seconds)), 1)
        return alike if fewer == steps else DecodeSteps(fewer, self._decode_seconds(self._decoding, fewer))

    def _take_steps(self, alike: DecodeSteps) -> None:
        steps, seconds = alike
        decoding = self._decoding
        count = decoding[0].num_decoding if len(decoding) == 1 else sum([group.num_decoding for group in decoding])
        if count > self.max_running:
            self.max_running = count
        first_step = self._now + seconds
        if self._unseen:
            self._see_first_tokens(min(first_step, self._now + self._rules.streams_late))
        self._note_steps(steps, self._rules.rows_per_sequence * count)
        self._since_look += steps
        self._spend(seconds, steps)
        for group in decoding:
            group.decode(steps)
        tokens = count * self._rules.tokens_per_step
        self._end_step(self._arrivals.stream(first_step, self._now, steps, tokens))

    def _note_steps(self, steps: int, num_tokens: int) -> None:
        """``steps`` begin, which compute ``num_tokens`` each."""

    def _decode_seconds(self, decoding: list[Group], steps: int) -> float:
        """Return the seconds of the middle one of ``steps`` decode steps."""
        rows = self._rules.rows_per_sequence
        if len(decoding) == 1:
            count, middle = self._midway(decoding[0], steps)
            return self._decoding_step(rows * count, count)(middle, float(rows * middle))
        held = [self._midway(group, steps) for group in decoding]
        met = rows * sum([count for count, _ in held])
        fullest = (max(held), max(held, key=itemgetter(1)))  # the most sequences, and the most tokens
        return max([self._decoding_step(met, count)(middle, float(rows * middle)) for count, middle in fullest])

    def _midway(self, group: Group, steps: int) -> tuple[int, int]:
        """How many sequences decode, and the tokens that they hold in the middle one of ``steps``."""
        count = group.num_decoding
        return count, int(group.decoding_tokens + int(self._rules.tokens_per_step * count * (steps + 1) / 2))

    def _decoding_step(self, met: int, count: int) -> AttendingStep:
        """A step in which ``count`` sequences of a group decode and ``met`` tokens of all groups meet."""
        step = self._decoding_steps.get((met, count))
        if step is None:
            clock, rows = self._clock, self._rules.rows_per_sequence * count
            if isinstance(clock, GroupClock):
                step = step_of(clock, met, rows, count, rows)
            else:
                assert met == rows, "steps of one group"
                step = partial(clock.seconds, rows, count, rows)
            self._decoding_steps[met, count] = step
        return step

    def _next_arrival(self) -> float:
        """The next event that could change who runs; never where all seats are taken, or others wait already."""
        seats = self._rules.max_num_seqs
        for group in self._groups:
            if not group.waiting and group.num_running < seats:
                return self._arrivals.next_event()
        return NEVER

    def _end_step(self, streamed: float) -> None:
        """Clients have its tokens at ``streamed``."""
        for group in self._groups:
            for sequence in group.take_ended(streamed):
                self._arrivals.note_end(streamed, sequence)
                self._num_counted += sequence.number < self._last
            group.make_room()


def _hold(group: Group, chunks: list[Chunk]) -> list[Sequence]:
    """What is read of ``chunks`` is in the pool now. Return those that are read to the end."""
    for sequence, number in chunks:
        group.hold(sequence, number)
    return [sequence for sequence, _ in chunks if sequence.computed >= sequence.known]


def _load_of(group: Group, decoding: int, chunks: list[Chunk], rows: int, num_read: int) -> GroupLoad:
    """Return the load of a step in which ``decoding`` of its sequences have ``rows`` tokens each. ``chunks`` are in the
    pool, and ``num_read`` of their prompts to the end."""
    num_tokens, kv_tokens = rows * decoding, int(group.decoding_tokens) + decoding if decoding else 0
    pairs = float(rows * kv_tokens)
    for sequence, number in chunks:
        pairs += number * (sequence.computed - number + (number + 1) / 2)
        num_tokens += number
        kv_tokens += sequence.computed
    return GroupLoad(num_tokens, decoding + len(chunks), rows * decoding + num_read, kv_tokens, pairs)


def play(load: PlayedLoad, rules: SchedulingRules, clock: StepClock) -> PlayedFigures:
    """What ``load`` sees of one instance. The pool of a group holds the longest request alone.

    Groups that share their experts take each step together; others are played as one of them, with its share.
    """
    if rules.num_groups > 1 and not rules.in_step:
        busy = min(rules.num_groups, load.max_concurrency or rules.num_groups)
        return of_groups(play(load.shared_by(busy), rules.alone(busy), clock), busy)
    played = InstancePlay(load, rules, clock)
    played.run()
    return played.figures()
