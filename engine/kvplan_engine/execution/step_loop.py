"""Runs an engine's steps: asynchronous scheduling, one step ahead of the tokens where that is possible.

A step is scheduled by counts; the values of its input tokens may still be on the device. So step n + 1 is scheduled and
started while the device computes step n, and the device never waits for the host:

    host     schedule 1  start 1  schedule 2  start 2  take 1  schedule 3  start 3  take 2 ...
    device                        step 1 ............  step 2 ................  step 3 .....

The tokens of a step are read after the next step has been started. A sequence that turns out to have ended has computed
one token too many, which is dropped. Its blocks are free at once: whoever gets them writes to them in a later step,
which the device runs after this one. Steps that depend on values (beam search, penalties, log-probabilities, stop
strings) cannot run ahead: while such a request runs, every step waits for its tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvplan_engine.device.allocation import allocating
from kvplan_engine.execution.output_processor import OutputProcessor
from kvplan_engine.execution.step_observer import UNOBSERVED, StepObserver
from kvplan_engine.execution.step_runner import StepRunner, Waitable
from kvplan_engine.offload.mover import Mover
from kvplan_engine.requests.outputs import StepOutput
from kvplan_engine.requests.stats import StepStats
from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.sampling.sampler import SampledTokens
from kvplan_engine.scheduling.scheduler import Scheduler

Count = Callable[[StepPlan], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Started:
    """A step whose tokens are not processed yet. wait: for its tokens. is_pending: they may still be on the device."""

    plan: StepPlan
    wait: Callable[[], SampledTokens]
    is_pending: bool


class StepLoop:
    """One engine's steps. runs_ahead: the next step may start before the tokens of the last are read.

    num_ahead: steps that were started before the tokens of the step before had been read. num_steps: all steps.
    observer: is told of every step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepRunner,
        mover: Mover,
        output_processor: OutputProcessor,
        count: Count,
        *,
        runs_ahead: bool,
    ) -> None:
        self.stats = StepStats(num_free_blocks=scheduler.pool.num_blocks)
        self.runs_ahead = runs_ahead
        self.num_ahead = 0
        self.num_steps = 0
        self.observer: StepObserver = UNOBSERVED
        self._scheduler = scheduler
        self._runner = runner
        self._mover = mover
        self._output_processor = output_processor
        self._count = count
        self._started: _Started | None = None
        self._latest: np.ndarray | None = None  # the last step's tokens, by row, where they have been read

    def step(self) -> Rows[StepOutput]:
        """Start the next step, and process the tokens that are there: of the last step, of this one, or none yet."""
        began = time.perf_counter()
        self.observer.began()
        if self._started is not None and self._scheduler.needs_values:
            return self._take(began, self._count_up(StepPlan()))
        plan = self._scheduler.schedule()
        self.observer.planned(plan)
        self.observer.ended("schedule")
        with allocating("runtime"):
            if plan.transfers:
                self._mover.run(plan.transfers)
                self.observer.ended("transfer")
            if not plan.num_tokens:
                return self._take(began, self._count_up(plan))
            started = self._start(plan)
        counts = self._count_up(plan)  # before finished sequences leave
        outputs = self._take(began, counts)
        self._started = started
        if started.is_pending:
            return outputs
        new = self._take(began, counts)
        return [*outputs, *new] if outputs else new

    def _count_up(self, plan: StepPlan) -> dict[str, Any]:
        counts = self._count(plan)
        self.observer.ended("count")
        return counts

    def _start(self, plan: StepPlan) -> _Started:
        """Queue the whole step, sampling included; waits only for sampling that is done on the host."""
        runner, before, ended = self._runner, self._started, self.observer.ended
        batch = runner.prepare(plan, self._latest, None if before is None else before.plan)
        ended("prepare")
        logits = runner.forward(batch)
        ended("forward")
        self._scheduler.commit(plan)
        ended("commit")
        self.num_steps += 1
        self.num_ahead += before is not None
        started = self._sample(plan, logits)
        ended("sample")
        return started

    def _sample(self, plan: StepPlan, logits: Any) -> _Started:
        runner = self._runner
        if self.runs_ahead and plan.is_plainly_greedy and not plan.needs_token_details:
            tokens = runner.choose_likeliest(logits, plan)
            return _Started(plan, lambda: _read(tokens), is_pending=True)
        sampled = runner.sampler.sample_step(logits, plan)
        if plan.wants_prompt_logprobs:
            runner.take_prompt_logprobs(plan)
        return _Started(plan, lambda: sampled, is_pending=False)

    def _take(self, began: float, counts: dict[str, Any]) -> Rows[StepOutput]:
        """Process the tokens of the step that was started last; [] when there is none."""
        started, self._started = self._started, None
        self._latest = None
        if started is None:
            return []
        with allocating("runtime"):
            tokens = started.wait()
        self.observer.ended("wait")
        self._latest = tokens.array
        now = time.perf_counter()
        outputs = self._output_processor.take(started.plan, tokens.token_ids, tokens.details, now)
        self.observer.ended("process")
        self.stats = StepStats(
            **counts, step_seconds=now - began, longest_stall_seconds=self._output_processor.stall_seconds
        )
        return outputs


def _read(tokens: Waitable) -> SampledTokens:
    array = tokens.wait()
    return SampledTokens(array.tolist(), array)
