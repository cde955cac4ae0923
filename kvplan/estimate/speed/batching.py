"""Continuous batching simulated on lengths alone: which step computes what, and when each token appears.

The rules are those of the engine's scheduler (and of vLLM's): running sequences first, oldest first, one token each
when they decode; then waiting ones in order of arrival while the token budget, max_num_seqs and the free blocks allow,
prompts in chunks of what is left of the budget; when blocks run out the newest running sequence loses its own and waits
at the front to be computed again, and nobody is admitted in that step. Requests are sent between steps, at most
``max_concurrency`` in flight, and count as arrived when they are sent.

    num_known     tokens of the sequence: prompt and what was generated
    num_computed  tokens whose K and V lie in the pool; num_known - num_computed are still to compute

Requests may begin with a shared prefix: once one of them has computed it, its whole blocks are found and shared.
Not simulated: blocks of a preempted sequence that are found again when it returns, and eviction of unused prefixes.

While no request arrives, ends or runs out of blocks, steps differ only in the length of the sequences and are
simulated in one go. Inputs and results are the types of ``simulation``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.estimate.speed.simulation import (
    BatchLimits,
    RequestLengths,
    SimulatedRequest,
    Simulation,
    StepClock,
    StepLoads,
)

# Share of the pool that stays free when a sequence is admitted beside running ones.
_WATERMARK = 0.01


@dataclass(slots=True)
class _Prefix:
    """A shared beginning of prompts: its whole blocks that have been computed, and how many running sequences use them.

    Blocks that nobody uses are free, and found all the same.
    """

    num_blocks: int = 0
    num_users: int = 0


@dataclass(slots=True, eq=False)
class _Sequence:
    """num_blocks: its own; num_shared_blocks: those of its prefix, which are counted once for all."""

    simulated: SimulatedRequest
    num_known: int
    num_output_left: int
    prefix: _Prefix
    num_prefix_tokens: int = 0
    num_computed: int = 0
    num_blocks: int = 0
    num_shared_blocks: int = 0

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
        self, requests: Sequence[RequestLengths], limits: BatchLimits, clock: StepClock, max_concurrency: int | None
    ) -> None:
        self._pending = deque(requests)
        self._limits = limits
        self._clock = clock
        self._max_in_flight = max_concurrency or max(len(requests), 1)
        self._num_free = limits.num_blocks
        self._watermark = int(limits.num_blocks * _WATERMARK)
        self._running: list[_Sequence] = []
        self._waiting: deque[_Sequence] = deque()
        self._seconds = 0.0
        self._prefixes: dict[int, _Prefix] = {}
        self.loads = StepLoads()
        self.simulated: list[SimulatedRequest] = []
        self.num_preemptions = 0
        self.max_running = 0
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
            prefix = self._prefixes.setdefault(request.prefix_index, _Prefix())
            sequence = _Sequence(simulated, request.num_prompt_tokens, request.num_output_tokens, prefix)
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
        budget = self._continue_running(scheduled, self._limits.max_num_batched_tokens)
        if self.num_preemptions == preempted_before:
            self._admit(scheduled, budget)
        self._finish_step(scheduled)

    def _continue_running(self, scheduled: list[tuple[_Sequence, int]], budget: int) -> int:
        position = 0
        while position < len(self._running) and budget > 0:
            sequence = self._running[position]
            num_new = min(sequence.num_known - sequence.num_computed, budget)
            while not self._take_blocks(sequence, num_new):
                victim = self._running.pop()
                self._preempt(victim)
                if victim is sequence:
                    return budget
            scheduled.append((sequence, num_new))
            budget -= num_new
            position += 1
        return budget

    def _admit(self, scheduled: list[tuple[_Sequence, int]], budget: int) -> None:
        while self._waiting and budget > 0 and len(self._running) < self._limits.max_num_seqs:
            sequence = self._waiting[0]
            if not self._has_room_for(sequence, budget):
                self.was_blocked = True
                return
            self._adopt_prefix(sequence)
            num_new = min(sequence.num_known - sequence.num_computed, budget)
            self._take_blocks(sequence, num_new)
            self._running.append(self._waiting.popleft())
            scheduled.append((sequence, num_new))
            budget -= num_new

    def _has_room_for(self, sequence: _Sequence, budget: int) -> bool:
        num_found = self._found_blocks(sequence)
        num_cached = num_found * self._limits.block_size
        needed = self._blocks_for(num_cached + min(sequence.num_known - num_cached, budget))
        if sequence.prefix.num_users:
            needed -= num_found
        kept_back = self._watermark if self._running else 0
        return needed + kept_back <= self._num_free

    def _finish_step(self, scheduled: list[tuple[_Sequence, int]]) -> None:
        num_tokens = num_sampled = num_kv_tokens = 0
        num_pairs = 0.0
        step = len(self.loads)
        self.max_running = max(self.max_running, len(self._running))
        for sequence, num_new in scheduled:
            # causal: the first new token sees what was there and itself, the last one all
            num_pairs += num_new * (sequence.num_computed + (num_new + 1) / 2)
            sequence.num_computed += num_new
            num_tokens += num_new
            num_kv_tokens += sequence.num_computed
            if sequence.num_computed == sequence.num_known:
                num_sampled += 1
                sequence.got_tokens(step, 1)
            if sequence.num_prefix_tokens and not sequence.num_shared_blocks:
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
        if any(sequence.num_output_left == 0 for sequence in self._running):
            for sequence in self._running:
                if sequence.num_output_left == 0:
                    self._release(sequence)
            self._running = [sequence for sequence in self._running if sequence.num_output_left]

    # ---- many steps in which only lengths change

    def _decode_on(self) -> bool:
        """Simulate steps until a request ends, arrives or lacks a block; False where the next is of another kind."""
        running, count = self._running, len(self._running)
        if not count or count > self._limits.max_num_batched_tokens or self._may_admit(count):
            return False
        if any(sequence.num_known - sequence.num_computed != 1 for sequence in running):
            return False
        num_steps = self._steps_with_blocks(min(sequence.num_output_left for sequence in running))
        if num_steps < 1:
            return False
        first = len(self.loads)
        num_kv_tokens = sum(sequence.num_computed for sequence in running)
        while num_steps > len(self.loads) - first:
            num_kv_tokens += count
            self._record(count, count, count, num_kv_tokens, float(num_kv_tokens))
            if self._is_next_due():
                break
        num_simulated = len(self.loads) - first
        for sequence in running:
            sequence.got_tokens(first, num_simulated)
            self._take_blocks(sequence, num_simulated)
            sequence.num_computed += num_simulated
        self._let_finished_go()
        return True

    def _may_admit(self, num_running: int) -> bool:
        """Whether the next step would take in the head of the queue, or be found blocked by the pool."""
        if not self._waiting or num_running >= self._limits.max_num_seqs:
            return False
        budget = self._limits.max_num_batched_tokens - num_running
        if budget <= 0:
            return False
        # blocks only become fewer while sequences decode; a step that takes the last ones is simulated by itself
        return not self.was_blocked or self._has_room_for(self._waiting[0], budget)

    def _steps_with_blocks(self, most: int) -> int:
        """Decode steps, up to ``most``, that the free blocks suffice for."""
        fits, above = 0, most + 1
        step = most
        while above - fits > 1:
            needed = sum(self._missing_blocks(sequence, step) for sequence in self._running)
            fits, above = (step, above) if needed <= self._num_free else (fits, step)
            step = (fits + above) // 2
        return fits

    # ---- blocks

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._limits.block_size)

    def _missing_blocks(self, sequence: _Sequence, num_new: int) -> int:
        held = sequence.num_blocks + sequence.num_shared_blocks
        return max(self._blocks_for(sequence.num_computed + num_new) - held, 0)

    def _take_blocks(self, sequence: _Sequence, num_new: int) -> bool:
        missing = self._missing_blocks(sequence, num_new)
        if missing > self._num_free:
            return False
        self._num_free -= missing
        sequence.num_blocks += missing
        return True

    def _release(self, sequence: _Sequence) -> None:
        self._num_free += sequence.num_blocks
        if sequence.num_shared_blocks:
            sequence.prefix.num_users -= 1
            if not sequence.prefix.num_users:
                self._num_free += sequence.prefix.num_blocks
        sequence.num_blocks = sequence.num_shared_blocks = 0

    def _found_blocks(self, sequence: _Sequence) -> int:
        """Whole blocks of its prefix that somebody has computed; at least one token is left to compute."""
        if not sequence.prefix.num_blocks:
            return 0
        usable = min(sequence.num_prefix_tokens, sequence.num_known - 1) // self._limits.block_size
        return min(usable, sequence.prefix.num_blocks)

    def _adopt_prefix(self, sequence: _Sequence) -> None:
        num_found = self._found_blocks(sequence)
        if num_found:
            prefix = sequence.prefix
            if not prefix.num_users:
                self._num_free -= prefix.num_blocks
            prefix.num_users += 1
            sequence.num_shared_blocks = num_found
            sequence.num_computed = num_found * self._limits.block_size

    def _share_prefix(self, sequence: _Sequence) -> None:
        """The first to have computed its whole prefix lets the others use its blocks."""
        num_blocks = sequence.num_prefix_tokens // self._limits.block_size
        if num_blocks and not sequence.prefix.num_blocks and sequence.num_computed >= sequence.num_prefix_tokens:
            sequence.prefix.num_blocks = sequence.num_shared_blocks = num_blocks
            sequence.prefix.num_users = 1
            sequence.num_blocks -= num_blocks

    def _preempt(self, sequence: _Sequence) -> None:
        self._release(sequence)
        sequence.num_computed = 0
        self._waiting.appendleft(sequence)
        self.num_preemptions += 1


def simulate_requests(
    requests: Sequence[RequestLengths],
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
    )
