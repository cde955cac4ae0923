"""Continuous batching simulated on lengths alone: which step computes what, and when each token appears.

The rules are those of the engine's scheduler (and of vLLM's): running sequences first, those that decode with a token
each, then prompts in chunks of what is left of the token budget, oldest first; then waiting ones in order of arrival
while the budget, max_num_seqs and the free blocks allow. When blocks run out the newest running sequence loses its own
and waits at the front to be computed again, and nobody is admitted in that step. Requests are sent between steps, at
most ``max_concurrency`` in flight, and count as arrived when they are sent. Blocks are ``pool``'s.

    num_known     tokens of the sequence: prompt and what was generated
    num_computed  tokens whose K and V lie in the pool; num_known - num_computed are still to compute

Requests may begin with a shared prefix: once one of them has computed it, its whole blocks are found and shared, but
for models with states, which are found only at the end of the prompt that left them; that prompt's last chunk begins
there. Not simulated: blocks of a preempted sequence that are found again when it returns, and eviction of unused
prefixes.

While no request arrives, ends or runs out of blocks, steps differ only in the length of the sequences and are
simulated in one go. Inputs and results are the types of ``simulation``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.estimate.speed.simulation.interface import (
    ArrivingRequest,
    BatchLimits,
    SimulatedRequest,
    Simulation,
    StepClock,
    StepLoads,
)
from kvplan.estimate.speed.simulation.pool import Holding, Prefix, SimulatedPool


@dataclass(slots=True, eq=False)
class _Sequence:
    """``holding``: its blocks, and how many of its tokens are computed."""

    simulated: SimulatedRequest
    num_known: int
    num_output_left: int
    holding: Holding
    num_prefix_tokens: int = 0

    @property
    def num_missing(self) -> int:
        """Tokens to compute before it gets another."""
        return self.num_known - self.holding.num_computed

    def got_tokens(self, first_step: int, num_steps: int) -> None:
        runs = self.simulated.token_steps
        if runs and runs[-1][1] == first_step:
            runs[-1] = (runs[-1][0], first_step + num_steps)
        else:
            runs.append((first_step, first_step + num_steps))
        self.num_known += num_steps
        self.num_output_left -= num_steps


class _SimulatedScheduler:
    """The state: who runs, who waits, what is free, what time it is."""

    def __init__(
        self, requests: Sequence[ArrivingRequest], limits: BatchLimits, clock: StepClock, max_concurrency: int | None
    ) -> None:
        self._pending = deque(requests)
        self._limits = limits
        self._clock = clock
        self._max_in_flight = max_concurrency or max(len(requests), 1)
        self._pool = SimulatedPool(limits)
        self._running: list[_Sequence] = []
        self._waiting: deque[_Sequence] = deque()
        self._seconds = 0.0
        self._prefixes: dict[int, Prefix] = {}
        self.loads = StepLoads()
        self.simulated: list[SimulatedRequest] = []
        self.num_preemptions = 0
        self.max_running = 0
        self.max_used_blocks = 0
        self.was_blocked = False

    def run(self) -> None:
        while self._pending or self._running or self._waiting:
            self._send_due()
            if not self._running and not self._waiting:
                self._seconds = self._pending[0].arrival_seconds
                continue
            if not self._decode_on():
                self._step()

    # ---- requests in

    def _send_due(self) -> None:
        while self._is_next_due():
            request = self._pending.popleft()
            simulated = SimulatedRequest(
                request.num_prompt_tokens, request.num_output_tokens, self._seconds, len(self.loads)
            )
            self.simulated.append(simulated)
            holding = Holding(self._prefixes.setdefault(request.prefix_index, Prefix()))
            sequence = _Sequence(simulated, request.num_prompt_tokens, request.num_output_tokens, holding)
            sequence.num_prefix_tokens = min(request.num_prefix_tokens, request.num_prompt_tokens)
            self._waiting.append(sequence)

    def _is_next_due(self) -> bool:
        if not self._pending or self._pending[0].arrival_seconds > self._seconds:
            return False
        return len(self._running) + len(self._waiting) < self._max_in_flight

    # ---- one step

    def _step(self) -> None:
        scheduled: list[tuple[_Sequence, int]] = []
        preempted_before = self.num_preemptions
        budget = self._continue_running(scheduled)
        if self.num_preemptions == preempted_before:
            self._admit(scheduled, budget)
        self._finish_step([each for each in scheduled if each[0].holding.end])

    def _continue_running(self, scheduled: list[tuple[_Sequence, int]]) -> int:
        """Blocks for the running sequences, decoding ones first; what is left of the token budget."""
        budget = self._limits.max_num_batched_tokens
        decoding = [sequence for sequence in self._running if sequence.num_missing == 1][:budget]
        others = [sequence for sequence in self._running if sequence.num_missing > 1]
        self._grow([sequence for sequence in decoding if self._pool.is_at_border(sequence.holding)])
        scheduled += [(sequence, 1) for sequence in decoding if sequence.holding.end]
        budget -= len(scheduled)
        for sequence in others:
            num_new = self._chunk(sequence, min(sequence.num_missing, budget))
            if num_new and sequence.holding.end and self._take_chunk(sequence, num_new):
                scheduled.append((sequence, num_new))
                budget -= num_new
        return budget

    def _grow(self, growing: list[_Sequence]) -> None:
        """A logical block for each of ``growing``; what all of them have left behind is free before."""
        for sequence in growing:
            self._pool.give_back(sequence.holding)
        while not self._pool.take_one_each([sequence.holding for sequence in growing]):
            self._preempt_newest()
            growing = [sequence for sequence in growing if sequence.holding.end]

    def _take_chunk(self, sequence: _Sequence, num_new: int) -> bool:
        """Blocks for the next tokens of a prompt; False where it is the newest and there are too few."""
        self._pool.give_back(sequence.holding)
        while not self._pool.take(sequence.holding, num_new):
            if self._preempt_newest() is sequence:
                return False
        return True

    def _chunk(self, sequence: _Sequence, num_tokens: int) -> int:
        """How many of ``num_tokens`` a step computes: a state is left to the prefix cache at the end of a block."""
        if not (self._pool.has_states and self._limits.caches_prefixes):
            return num_tokens
        size, first = self._limits.block_size, sequence.holding.num_computed
        checkpoint = (sequence.simulated.num_prompt_tokens - 1) // size * size
        return checkpoint - first if first < checkpoint < first + num_tokens else num_tokens

    def _admit(self, scheduled: list[tuple[_Sequence, int]], budget: int) -> None:
        while self._waiting and budget > 0 and len(self._running) < self._limits.max_num_seqs:
            sequence = self._waiting[0]
            if not self._has_room_for(sequence, budget):
                self.was_blocked = True
                return
            num_found = self._found_blocks(sequence)
            if num_found:
                self._pool.adopt(sequence.holding, num_found)
            num_new = self._chunk(sequence, min(sequence.num_missing, budget))
            self._pool.take(sequence.holding, num_new)
            self._running.append(self._waiting.popleft())
            scheduled.append((sequence, num_new))
            budget -= num_new

    def _has_room_for(self, sequence: _Sequence, budget: int) -> bool:
        num_found = self._found_blocks(sequence)
        num_cached = num_found * self._limits.block_size
        num_tokens = num_cached + self._chunk(sequence, min(sequence.num_known - num_cached, budget))
        return self._pool.has_room(num_found, num_tokens, sequence.holding.prefix, beside_others=bool(self._running))

    def _finish_step(self, scheduled: list[tuple[_Sequence, int]]) -> None:
        num_tokens = num_sampled = num_kv_tokens = 0
        num_pairs = 0.0
        step = len(self.loads)
        self.max_running = max(self.max_running, len(self._running))
        for sequence, num_new in scheduled:
            # causal: the first new token sees what was there and itself, the last one all
            holding = sequence.holding
            num_pairs += num_new * (holding.num_computed + (num_new + 1) / 2)
            holding.num_computed += num_new
            num_tokens += num_new
            num_kv_tokens += holding.num_computed
            if not sequence.num_missing:
                num_sampled += 1
                sequence.got_tokens(step, 1)
            if sequence.num_prefix_tokens and not holding.num_shared:
                self._share_prefix(sequence)
        self._record(num_tokens, len(scheduled), num_sampled, num_kv_tokens, num_pairs)
        self._let_finished_go()

    def _record(self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv: int, num_pairs: float) -> None:
        seconds = self._clock.seconds(num_tokens, num_sequences, num_sampled, num_kv, num_pairs)
        self._seconds += seconds
        loads = self.loads
        loads.num_tokens.append(num_tokens)
        loads.num_sequences.append(num_sequences)
        loads.num_sampled.append(num_sampled)
        loads.num_kv_tokens.append(num_kv)
        loads.num_pairs.append(num_pairs)
        loads.step_seconds.append(seconds)
        loads.end_seconds.append(self._seconds)

    def _let_finished_go(self) -> None:
        self.max_used_blocks = max(self.max_used_blocks, self._limits.num_blocks - self._pool.num_free)
        if any(sequence.num_output_left == 0 for sequence in self._running):
            for sequence in self._running:
                if sequence.num_output_left == 0:
                    self._pool.release(sequence.holding)
            self._running = [sequence for sequence in self._running if sequence.num_output_left]

    # ---- many steps in which only lengths change

    def _decode_on(self) -> bool:
        """Simulate steps until a request ends, arrives or lacks a block; False where the next is of another kind."""
        running, count = self._running, len(self._running)
        if not count or count > self._limits.max_num_batched_tokens or self._may_admit(count):
            return False
        if any(sequence.num_missing != 1 for sequence in running):
            return False
        most = min(sequence.num_output_left for sequence in running)
        num_steps = self._pool.steps_with_blocks([sequence.holding for sequence in running], most)
        if num_steps < 1:
            return False
        first = len(self.loads)
        num_kv_tokens = sum(sequence.holding.num_computed for sequence in running)
        while num_steps > len(self.loads) - first:
            num_kv_tokens += count
            self._record(count, count, count, num_kv_tokens, float(num_kv_tokens))
            if self._is_next_due():
                break
        num_simulated = len(self.loads) - first
        for sequence in running:
            sequence.got_tokens(first, num_simulated)
            self._pool.decode(sequence.holding, num_simulated)
        self._let_finished_go()
        return True

    def _may_admit(self, num_running: int) -> bool:
        """Whether the next step would take in the head of the queue, or be found blocked by the pool."""
        if not self._waiting or num_running >= self._limits.max_num_seqs:
            return False
        budget = self._limits.max_num_batched_tokens - num_running
        if budget <= 0:
            return False
        # blocks only become fewer in such steps; one that takes the last of them is simulated by itself
        return not self.was_blocked or self._has_room_for(self._waiting[0], budget)

    # ---- prefixes and preemption

    def _found_blocks(self, sequence: _Sequence) -> int:
        """Whole blocks of its prefix that somebody has computed; at least one token is left to compute."""
        found = sequence.holding.prefix.num_logical
        if not found:
            return 0
        usable = min(sequence.num_prefix_tokens, sequence.num_known - 1) // self._limits.block_size
        return min(usable, found)

    def _share_prefix(self, sequence: _Sequence) -> None:
        """The first to have computed its whole prefix lets the others use its blocks."""
        holding = sequence.holding
        num_blocks = sequence.num_prefix_tokens // self._limits.block_size
        if self._pool.has_states or not self._limits.caches_prefixes or not num_blocks or holding.prefix.num_logical:
            return
        if holding.num_computed >= sequence.num_prefix_tokens:
            self._pool.share(holding, num_blocks)

    def _preempt_newest(self) -> _Sequence:
        sequence = self._running.pop()
        self._pool.release(sequence.holding)
        self._waiting.appendleft(sequence)
        self.num_preemptions += 1
        return sequence


def simulate_requests(
    requests: Sequence[ArrivingRequest],
    limits: BatchLimits,
    clock: StepClock,
    *,
    max_concurrency: int | None = None,
) -> Simulation:
    """Simulate the requests (in order of arrival) on a pool.

    The pool must hold the longest of them alone, as an engine demands before it starts: then every request ends.
    """
    scheduler = _SimulatedScheduler(requests, limits, clock, max_concurrency)
    scheduler.run()
    return Simulation(
        scheduler.loads,
        tuple(scheduler.simulated),
        scheduler.max_running,
        scheduler.num_preemptions,
        scheduler.was_blocked,
        scheduler.max_used_blocks,
    )
