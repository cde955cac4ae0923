"""One replica in time: who waits, is read and decodes."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from kvplan.fleet.replicas.pool import BlockPool, Held
from kvplan.fleet.replicas.seen import Seen
from kvplan.fleet.replicas.setup import ReplicaSetup
from kvplan.fleet.requests import FleetRequest


@dataclass(slots=True, eq=False)
class _Sequence:
    seen: Seen
    known: int
    num_left: int
    given: int
    arrived: float
    computed: int = 0
    held: Held | None = None


class Replica:
    """One replica of a fleet. now: the end of its last step."""

    def __init__(self, setup: ReplicaSetup, index: int = 0) -> None:
        self.setup, self.index = setup, index
        self.now = 0.0
        self._pool = BlockPool(setup.pool)
        self._coming: deque[_Sequence] = deque()
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._ended: list[Seen] = []
        self.num_preemptions = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self._coming)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens in hand that are still to be computed."""
        return sum(max(each.known - each.computed, 0) for each in [*self._coming, *self._waiting, *self._running])

    @property
    def kv_usage(self) -> float:
        """Share of the pool's blocks that running requests hold."""
        return 1 - self._pool.num_free / self._pool.num_blocks

    def match(self, request: FleetRequest) -> int:
        """Tokens of the prompt that the pool would find now."""
        return self._pool.match(request)

    def deliver(self, request: FleetRequest, at: float, computed_tokens: int = 0) -> None:
        """Hand over ``request`` at ``at``; ``computed_tokens``: whose KV comes from elsewhere."""
        seen = Seen(request, self.index, at)
        self._coming.append(_Sequence(seen, request.num_prompt_tokens, request.num_output_tokens, computed_tokens, at))

    def advance(self, until: float) -> None:
        """Play until then; a step that is under way is taken to its end."""
        while self.now < until:
            self._take_in()
            if not self._running and not self._waiting:
                if not self._coming or self._coming[0].arrived > until:
                    self.now = until
                    return
                self.now = max(self.now, self._coming[0].arrived)
                continue
            self._step()

    def next_event(self) -> float:
        """The moment before which nothing ends and nothing changes."""
        if self._running or self._waiting:
            return math.nextafter(self.now, math.inf)
        return max(self._coming[0].arrived, math.nextafter(self.now, math.inf)) if self._coming else math.inf

    def take_ended(self) -> list[Seen]:
        """Return those that ended since this was asked last."""
        ended, self._ended = self._ended, []
        return ended

    def _take_in(self) -> None:
        while self._coming and self._coming[0].arrived <= self.now:
            self._waiting.append(self._coming.popleft())

    def _step(self) -> None:
        rules = self.setup.rules
        budget = rules.max_num_batched_tokens
        chunks: list[tuple[_Sequence, int]] = []
        place, preempted = 0, False
        while place < len(self._running) and budget > 0:
            sequence = self._running[place]
            number = min(sequence.known - sequence.computed, budget)
            assert sequence.held is not None
            while not self._pool.grow(sequence.held, sequence.computed + number):
                preempted = True
                victim = self._running.pop()
                self._preempt(victim)
                if victim is sequence:
                    break
            else:
                chunks.append((sequence, number))
                budget -= number
                place += 1
                continue
            break
        while not preempted and self._waiting and budget > 0 and len(self._running) < rules.max_num_seqs:
            sequence = self._waiting[0]
            found = self._pool.match(sequence.seen.request)
            computed = max(found, min(sequence.given, sequence.known - 1))
            number = min(sequence.known - computed, budget)
            held = self._pool.start(sequence.seen.request, found)
            if not self._pool.grow(held, computed + number):
                self._pool.let_go(held)
                break
            self._waiting.popleft()
            sequence.held, sequence.computed = held, computed
            if not sequence.seen.num_preemptions:
                sequence.seen.num_hit_tokens = found
            self._running.append(sequence)
            chunks.append((sequence, number))
            budget -= number
        self._spend(chunks)

    def _preempt(self, sequence: _Sequence) -> None:
        assert sequence.held is not None
        self._pool.let_go(sequence.held)
        sequence.held, sequence.computed, sequence.given = None, 0, 0
        sequence.seen.num_preemptions += 1
        self.num_preemptions += 1
        self._waiting.appendleft(sequence)

    def _spend(self, chunks: list[tuple[_Sequence, int]]) -> None:
        tokens = sum(number for _, number in chunks)
        kv = sum(sequence.computed + number for sequence, number in chunks)
        pairs = sum(number * (sequence.computed + (number + 1) / 2) for sequence, number in chunks)
        for sequence, number in chunks:
            sequence.computed += number
        done = [sequence for sequence, _ in chunks if sequence.computed >= sequence.known]
        self.now += self.setup.clock.seconds(tokens, len(chunks), len(done), kv, pairs)
        for sequence in done:
            self._sample(sequence)

    def _sample(self, sequence: _Sequence) -> None:
        seen = sequence.seen
        if not seen.first:
            seen.first = self.now
        sequence.known += 1
        sequence.num_left -= 1
        if not sequence.num_left:
            seen.last = self.now
            assert sequence.held is not None
            self._pool.let_go(sequence.held)
            self._running.remove(sequence)
            self._ended.append(seen)
