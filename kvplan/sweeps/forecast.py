"""How a trial will go, from lengths alone: the scheduler's rules played through without a model.

The rules (of the engine's scheduler, and of vLLM's): running sequences first, oldest first, one token each when they
decode; then waiting ones in order of arrival while the token budget, max_num_seqs and the free blocks allow, prompts in
chunks of what is left of the budget; when blocks run out the newest running sequence loses its own and waits at the
front to be computed again, and nobody is admitted in that step.

    num_known     tokens of the sequence: prompt and what was generated
    num_computed  tokens whose K and V lie in the pool; num_known - num_computed are still to compute
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvplan.sweeps.step_cost import StepCost
from kvplan.sweeps.trial import TrialSettings
from kvplan.sweeps.workload import RequestSpec

# Share of the pool that stays free when a sequence is admitted beside running ones.
_WATERMARK = 0.01


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the workload is expected to do with a pool. ``status``: ok, queued or preempted."""

    status: str
    max_running: int
    num_preemptions: int
    num_steps: int
    seconds: float
    num_output_tokens: int

    @property
    def output_throughput(self) -> float:
        return self.num_output_tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(slots=True)
class _Sequence:
    num_known: int
    num_output_left: int
    num_computed: int = 0
    num_blocks: int = 0


@dataclass(slots=True)
class _Schedule:
    """The state of the play: who runs, who waits, what is free."""

    settings: TrialSettings
    cost: StepCost
    num_free: int
    watermark: int
    running: list[_Sequence] = field(default_factory=list)
    waiting: deque[_Sequence] = field(default_factory=deque)
    num_preemptions: int = 0
    num_steps: int = 0
    max_running: int = 0
    seconds: float = 0.0
    was_blocked: bool = False

    @property
    def status(self) -> str:
        if self.num_preemptions:
            return "preempted"
        return "queued" if self.was_blocked else "ok"

    def step(self) -> None:
        scheduled: list[tuple[_Sequence, int]] = []
        budget = self.settings.max_num_batched_tokens
        preempted_before = self.num_preemptions
        budget = self._continue_running(scheduled, budget)
        if self.num_preemptions == preempted_before:
            self._admit(scheduled, budget)
        self._finish_step(scheduled)

    def _continue_running(self, scheduled: list[tuple[_Sequence, int]], budget: int) -> int:
        position = 0
        while position < len(self.running) and budget > 0:
            sequence = self.running[position]
            num_new = min(sequence.num_known - sequence.num_computed, budget)
            while not self._take_blocks(sequence, num_new):
                victim = self.running.pop()
                self._preempt(victim)
                if victim is sequence:
                    return budget
            scheduled.append((sequence, num_new))
            budget -= num_new
            position += 1
        return budget

    def _admit(self, scheduled: list[tuple[_Sequence, int]], budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.settings.max_num_seqs:
            sequence = self.waiting[0]
            num_new = min(sequence.num_known, budget)
            kept_back = self.watermark if self.running else 0
            if self._blocks_for(num_new) + kept_back > self.num_free:
                self.was_blocked = True
                return
            self._take_blocks(sequence, num_new)
            self.running.append(self.waiting.popleft())
            scheduled.append((sequence, num_new))
            budget -= num_new

    def _finish_step(self, scheduled: list[tuple[_Sequence, int]]) -> None:
        num_sampled = num_new_tokens = num_kv_tokens = 0
        self.max_running = max(self.max_running, len(self.running))
        for sequence, num_new in scheduled:
            sequence.num_computed += num_new
            num_new_tokens += num_new
            num_kv_tokens += sequence.num_computed
            if sequence.num_computed == sequence.num_known:
                num_sampled += 1
                sequence.num_known += 1
                sequence.num_output_left -= 1
        for sequence in [sequence for sequence in self.running if sequence.num_output_left == 0]:
            self.running.remove(sequence)
            self.num_free += sequence.num_blocks
        self.num_steps += 1
        self.seconds += self.cost.seconds(num_new_tokens, num_sampled, num_kv_tokens)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.settings.block_size)

    def _take_blocks(self, sequence: _Sequence, num_new: int) -> bool:
        missing = self._blocks_for(sequence.num_computed + num_new) - sequence.num_blocks
        if missing > self.num_free:
            return False
        if missing > 0:
            self.num_free -= missing
            sequence.num_blocks += missing
        return True

    def _preempt(self, sequence: _Sequence) -> None:
        self.num_free += sequence.num_blocks
        sequence.num_blocks = sequence.num_computed = 0
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1


def forecast_trial(
    requests: Sequence[RequestSpec],
    settings: TrialSettings,
    *,
    num_blocks: int,
    cost: StepCost,
    max_concurrency: int | None = None,
) -> Forecast:
    """Play the requests (already clipped to max_model_len) through a pool of ``num_blocks`` blocks.

    The pool must hold one sequence of max_model_len tokens, as the engine demands: then every request ends.
    """
    schedule = _Schedule(settings, cost, num_blocks, int(num_blocks * _WATERMARK))
    pending = deque(requests)
    limit = max_concurrency or len(requests)
    while pending or schedule.running or schedule.waiting:
        while pending and pending[0].arrival_seconds <= schedule.seconds:
            if len(schedule.running) + len(schedule.waiting) >= limit:
                break
            request = pending.popleft()
            schedule.waiting.append(_Sequence(request.num_prompt_tokens, request.num_output_tokens))
        if not schedule.running and not schedule.waiting:
            schedule.seconds = pending[0].arrival_seconds
            continue
        schedule.step()
    return Forecast(
        status=schedule.status,
        max_running=schedule.max_running,
        num_preemptions=schedule.num_preemptions,
        num_steps=schedule.num_steps,
        seconds=schedule.seconds,
        num_output_tokens=sum(request.num_output_tokens for request in requests),
    )
