"""Continuous batching played on lengths alone, coarsely enough for hundreds of deployments in a plan.

``batching`` counts every block of every sequence; here sequences that decode are one sum of tokens, and steps between
two events (an end, an arrival, a full pool) are taken together, each as long as the middle one. The rules are
``SchedulingRules``'.
"""

from __future__ import annotations

import math

from kvplan.estimate.speed.queueing.admission import Chunk, next_chunks
from kvplan.estimate.speed.queueing.arrivals import NEVER, Arrivals
from kvplan.estimate.speed.queueing.figures import PlayedFigures, played_figures
from kvplan.estimate.speed.queueing.instance import Instance, Sequence
from kvplan.estimate.speed.queueing.loads import PlayedLoad
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.simulation.interface import StepClock


class _Play:
    def __init__(self, load: PlayedLoad, rules: SchedulingRules, clock: StepClock) -> None:
        self._load, self._rules, self._clock = load, rules, clock
        self._instance = Instance(rules.pool_tokens, load.cached_tokens, late_steps=int(rules.streams_late > 0))
        self._arrivals = Arrivals(load, rules.front_end)
        self._unseen: list[Sequence] = []
        self._last = load.num_requests - load.num_cooldowns
        self._num_counted = 0
        self._max_running = 0

    def run(self) -> None:
        instance = self._instance
        if self._load.num_running:
            self._start_in_progress()
        while self._num_counted < self._last:
            self._send()
            if not (instance.waiting or instance.num_running):
                instance.wait_until(self._arrivals.next_event())
                continue
            chunks = next_chunks(instance, self._rules)
            if chunks:
                self._read(chunks)
            else:
                self._decode()

    def figures(self) -> PlayedFigures:
        counted = self._arrivals.requests[self._load.num_warmups : self._last]
        return played_figures(counted, self._instance.num_preemptions, self._max_running)

    def _start_in_progress(self) -> None:
        """They decode already, at places of their answers that are evenly spaced."""
        instance, number = self._instance, self._load.num_running
        for index in range(min(number, self._rules.max_num_seqs)):
            sequence = self._arrivals.send_running()
            answer = sequence.num_left
            done = min(max(round(answer * (index + 0.5) / number), 1), max(answer - 1, 1))
            sequence.known += done - 1
            sequence.num_left -= done - 1
            instance.start(sequence)
            instance.hold(sequence, sequence.known)
            sequence.request.first = instance.now
            instance.first_token(sequence)
        instance.make_room()

    def _send(self) -> None:
        """The engine takes in what came before the coming step was composed."""
        instance = self._instance
        self._arrivals.send(instance.now)
        is_busy = instance.num_running > 0 or bool(instance.waiting)
        until = instance.composed_at if self._rules.schedules_ahead and is_busy else instance.now
        instance.waiting.extend(self._arrivals.take(until))

    def _read(self, chunks: list[Chunk]) -> None:
        """One step that reads ``chunks``, and decodes beside them where the rules mix both."""
        instance = self._instance
        decoding = 0 if self._rules.prompts_first else instance.num_decoding
        self._max_running = max(self._max_running, instance.num_running)
        num_tokens, kv_tokens = decoding, instance.decoding_tokens + decoding if decoding else 0
        pairs, done = float(kv_tokens), []
        for sequence, number in chunks:
            pairs += number * (sequence.computed + (number + 1) / 2)
            instance.hold(sequence, number)
            num_tokens += number
            kv_tokens += sequence.computed
            if sequence.computed >= sequence.known:
                done.append(sequence)
        seconds = self._clock.seconds(num_tokens, decoding + len(chunks), decoding + len(done), kv_tokens, pairs)
        if self._rules.num_stages > 1:
            self._note_stages(chunks, seconds, decoding, kv_tokens, pairs)
        begun = instance.now
        instance.spend(seconds, 1 if decoding else 0)
        streamed = self._arrivals.stream(instance.now, instance.now, 1, decoding + len(done))
        self._see_first_tokens(min(streamed, begun + self._rules.streams_late))
        for sequence in done:
            instance.first_token(sequence)
        self._unseen += [sequence for sequence in done if not sequence.request.first]
        if not self._rules.streams_late:
            self._see_first_tokens(streamed)
        self._end_step(streamed)

    def _note_stages(self, chunks: list[Chunk], seconds: float, decoding: int, kv_tokens: int, pairs: float) -> None:
        """What the chunks that end prompts still pass when the step that reads ``chunks`` ends after ``seconds``.

        A step of several stages is one pass of all micro-batches, each with its share of the work. But a chunk is in
        one of them, whole, which begins behind those before it and passes one stage after the other.
        """
        stages, held = self._rules.num_stages, self._instance.decoding_tokens + decoding if decoding else 0
        read = sum(number for _, number in chunks)
        in_batch = min(read, self._rules.max_num_batched_tokens // stages)
        full = in_batch * stages / read  # a pass in which every micro-batch has as much to read as those of this one
        tokens, sequences = decoding + in_batch * stages, decoding + stages
        whole = self._clock.seconds(
            tokens, sequences, sequences, held + round(full * (kv_tokens - held)), held + full * (pairs - held)
        )
        begun = 0
        for sequence, number in chunks:
            begun += number
            if sequence.computed >= sequence.known and not sequence.request.first:
                passed = math.ceil(begun / in_batch) + stages - 1
                sequence.request.in_stages = max(passed * whole / stages - seconds, 0.0)

    def _see_first_tokens(self, streamed: float) -> None:
        """Those that clients were still to see."""
        for sequence in self._unseen:
            sequence.request.first = streamed
        self._unseen.clear()

    def _decode(self) -> None:
        """As many decode steps as differ in lengths only."""
        instance = self._instance
        count = instance.num_decoding
        self._max_running = max(self._max_running, count)
        steps = instance.steps_to_next_end
        room = self._rules.pool_tokens - instance.num_held
        steps = max(min(steps, int(room / count) if room > count else 1), 1)
        seconds = self._decode_seconds(steps)
        arrival = self._next_arrival()
        if instance.now + steps * seconds > arrival:
            steps = max(min(steps, math.ceil((arrival - instance.now) / seconds)), 1)
            seconds = self._decode_seconds(steps)
        first_step = instance.now + seconds
        self._see_first_tokens(min(first_step, instance.now + self._rules.streams_late))
        instance.spend(seconds, steps)
        self._end_step(self._arrivals.stream(first_step, instance.now, steps, count))

    def _decode_seconds(self, steps: int) -> float:
        """Of the middle one of ``steps`` decode steps."""
        count = self._instance.num_decoding
        middle = self._instance.decoding_tokens + count * (steps + 1) // 2
        return self._clock.seconds(count, count, count, middle, float(middle))

    def _next_arrival(self) -> float:
        """The next event that could change who runs; never where all seats are taken."""
        if self._instance.waiting or self._instance.num_running >= self._rules.max_num_seqs:
            return NEVER
        return self._arrivals.next_event()

    def _end_step(self, streamed: float) -> None:
        """Clients have its tokens at ``streamed``."""
        instance = self._instance
        for sequence in instance.take_ended(streamed):
            self._arrivals.note_end(streamed)
            self._num_counted += sequence.number < self._last
        instance.make_room()


def play(load: PlayedLoad, rules: SchedulingRules, clock: StepClock) -> PlayedFigures:
    """What ``load`` sees of one instance. The pool holds the longest request alone."""
    played = _Play(load, rules, clock)
    played.run()
    return played.figures()
