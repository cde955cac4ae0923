"""The sequences of one group of an instance between two steps: who waits, reads and decodes, and the tokens they hold.

An instance has one group, or several data-parallel ones with a pool, seats and a token budget each. Sequences that
decode are one sum of tokens and a queue of the steps in which they end.

    ticks    decode steps so far: a sequence that starts to decode at tick t with r tokens to come ends at tick t + r,
             or earlier where a step yields several tokens
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass

from kvplan.estimate.speed.queueing.figures import RequestTimes
from kvplan.estimate.speed.queueing.prefix_cache import Cached, PrefixCache
from kvplan.estimate.speed.queueing.rules import SchedulingRules


@dataclass(slots=True, eq=False)
class Sequence:
    """computed: tokens in the pool. known: tokens to be computed before the next is sampled. found: those of them that
    the prefix cache has. num_left: tokens to be sampled. end_tick: while it decodes, when it gets its last token; 0
    otherwise. start_tick: when it began to."""

    request: RequestTimes
    number: int
    known: int
    computed: int = 0
    found: int = 0
    num_left: int = 0
    end_tick: int = 0
    is_running: bool = False
    start_tick: int = 0
    cached: Cached | None = None


class Group:
    """pool_tokens: those of all sequences together. cached_tokens: of each prompt, in a prefix that all share.
    late_steps: those in which a sequence is that has all of its tokens. cache: what its pool finds again, of loads that
    say what their prompts share. rows_per_sequence, tokens_per_step: as for ``SchedulingRules``.
    """

    def __init__(
        self,
        pool_tokens: float,
        cached_tokens: int,
        late_steps: int = 0,
        cache: PrefixCache | None = None,
        rows_per_sequence: int = 1,
        tokens_per_step: float = 1,
    ) -> None:
        self.cache = cache
        self._rows, self._tokens_per_step = rows_per_sequence, tokens_per_step
        self._pool_tokens = pool_tokens
        self._late_steps = late_steps
        self._cached_tokens = cached_tokens
        self.ticks = 0
        self.waiting: deque[Sequence] = deque()
        self.reading: list[Sequence] = []
        self._ends: list[tuple[int, int, Sequence]] = []
        self._order: list[Sequence] = []
        self._end_ticks = 0
        self.may_admit = True
        self.num_decoding = 0
        self.decoding_tokens: float = 0
        self._reading_tokens = 0
        self.num_preemptions = 0

    @property
    def num_running(self) -> int:
        return self.num_decoding + len(self.reading)

    @property
    def num_in_hand(self) -> int:
        """Requests that run or wait."""
        return self.num_decoding + len(self.reading) + len(self.waiting)

    @property
    def num_held(self) -> float:
        """Tokens in the pool; a prefix that sequences share is held once."""
        shared = max(self.num_decoding - 1, 0) * self._cached_tokens
        extra = 0 if self.cache is None else self.cache.extra_tokens
        return self.decoding_tokens + self._reading_tokens - shared + extra

    @property
    def num_to_come(self) -> float:
        """Tokens of the answers of those that run."""
        decoding = self._end_ticks - self.num_decoding * self.ticks
        return decoding * self._tokens_per_step + sum(
            each.known - each.computed + each.num_left for each in self.reading
        )

    @property
    def steps_to_next_end(self) -> int:
        """Decode steps until a sequence that decodes has its last token."""
        return self._ends[0][0] - self.ticks

    def decode(self, ticks: int) -> None:
        """Give those that decode a token in each of ``ticks`` steps."""
        self.ticks += ticks
        self.decoding_tokens += ticks * self.num_decoding * self._tokens_per_step

    def look_up(self, sequence: Sequence) -> None:
        """What the pool has of ``sequence``, which waits."""
        if self.cache is not None and sequence.cached is not None:
            self.cache.find(sequence.cached, sequence.known, self.num_held)
            sequence.found = sequence.cached.found

    def has_room(self, rules: SchedulingRules, sequence: Sequence, num_new: int) -> bool:
        """Whether ``sequence``, which waits, may start with ``num_new`` of its tokens."""
        if not self.num_running:
            return True
        if rules.reserves:
            to_come = rules.reserves * (self.num_to_come + sequence.num_left)
            return self.num_held + sequence.known + to_come <= rules.pool_tokens
        missing_of_others = sum(each.known - each.computed for each in self.reading)
        revived = 0 if sequence.cached is None else sequence.cached.revived
        return self.num_held + missing_of_others + num_new + revived <= rules.pool_tokens

    def compose(self) -> None:
        """A step is composed in which a prompt may be read."""

    def next_chunk(self, sequence: Sequence, budget: int) -> int:
        """How many tokens the next step reads of ``sequence``, which is being read, with ``budget`` left."""
        return self.clipped(sequence, sequence.computed, min(sequence.known - sequence.computed, budget))

    def clipped(self, sequence: Sequence, begun: int, number: int) -> int:
        """How many of ``number`` tokens after the first ``begun`` a step reads, where it may not end anywhere."""
        return number

    def reserve(self, sequence: Sequence, number: int) -> None:
        """The step that is composed reads ``number`` tokens of ``sequence``."""

    def steps_that_fit(self) -> int:
        """Decode steps that the pool has room for, 1 where the next may be too much."""
        taken, room = self._rows * self.num_decoding, self._pool_tokens - self.num_held
        return int(room / taken) if room > taken else 1

    def start(self, sequence: Sequence) -> None:
        """``sequence`` has a seat; the rest of its prompt is to be read."""
        sequence.computed = sequence.found
        if self.cache is not None and sequence.cached is not None:
            self.cache.take(sequence.cached)
        sequence.is_running = True
        self.reading.append(sequence)
        self._order.append(sequence)

    def hold(self, sequence: Sequence, num_tokens: int) -> None:
        """``num_tokens`` more of ``sequence``, which is being read, are in the pool."""
        sequence.computed += num_tokens
        self._reading_tokens += num_tokens
        if self.cache is not None and sequence.cached is not None:
            self.cache.computed(sequence.cached, sequence.computed)

    def first_token(self, sequence: Sequence) -> None:
        """A prompt has been read: its sequence has a token more, and decodes now."""
        self._leave_reading(sequence)
        if self.cache is not None and sequence.cached is not None:
            self.cache.start_decoding(sequence.cached)
        sequence.num_left -= 1
        sequence.start_tick = self.ticks
        sequence.end_tick = self.ticks + math.ceil(sequence.num_left / self._tokens_per_step) + self._late_steps
        self.num_decoding += 1
        self.decoding_tokens += sequence.known
        self._end_ticks += sequence.end_tick
        heapq.heappush(self._ends, (sequence.end_tick, sequence.number, sequence))

    def take_ended(self, streamed: float) -> list[Sequence]:
        """Take out those that got their last token, which clients see at ``streamed``."""
        ended: list[Sequence] = []
        if not self._ends or self._ends[0][0] > self.ticks:
            return ended
        while self._ends and self._ends[0][0] <= self.ticks:
            _, _, sequence = heapq.heappop(self._ends)
            request = sequence.request
            request.last = streamed
            if self.cache is not None and sequence.cached is not None:
                held = request.num_prompt_tokens + request.num_output_tokens - 1
                self.cache.leave(sequence.cached, held, self.num_held)
            self._leave_decoding(sequence)
            ended.append(sequence)
        if len(self._order) > 2 * self.num_running + 32:
            self._order = [each for each in self._order if each.is_running]
        return ended

    def make_room(self) -> None:
        """The newest sequences lose their tokens while the next step would not fit the pool, and nobody joins it."""
        self.may_admit = True
        while self.num_running > 1 and self.num_held + self._rows * self.num_decoding > self._pool_tokens:
            newest = self._order.pop()
            if newest.is_running:
                self._preempt(newest)
                self.may_admit = False

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        if self.cache is not None and sequence.cached is not None:
            self.cache.lose(sequence.cached, is_reading=sequence in self.reading)
        request = sequence.request
        if sequence in self.reading:
            sequence.is_running = False
            self._leave_reading(sequence)
        else:
            left = sequence.num_left - int(self._tokens_per_step * (self.ticks - sequence.start_tick))
            known = request.num_prompt_tokens + request.num_output_tokens - left
            self._ends.remove((sequence.end_tick, sequence.number, sequence))
            heapq.heapify(self._ends)
            self._leave_decoding(sequence)
            sequence.known, sequence.num_left, sequence.end_tick = known, max(left, 1), 0
        sequence.computed = 0
        self.waiting.appendleft(sequence)

    def _leave_reading(self, sequence: Sequence) -> None:
        self.reading.remove(sequence)
        self._reading_tokens -= sequence.computed - sequence.found

    def _leave_decoding(self, sequence: Sequence) -> None:
        sequence.is_running = False
        self.num_decoding -= 1
        self.decoding_tokens -= sequence.known + self._tokens_per_step * (self.ticks - sequence.start_tick)
        self._end_ticks -= sequence.end_tick
