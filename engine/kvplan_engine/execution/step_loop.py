"""Runs an engine's steps, one ahead of the tokens where that is possible.

A step's inputs follow from counts; the values of the tokens in it may still be on the device. So step n + 1 is decided
and started while the device computes step n, and the device never waits for the host:

    host     schedule 1  start 1  schedule 2  start 2  take 1  schedule 3  start 3  take 2 ...
    device                        step 1 ............  step 2 ................  step 3 .....

The tokens of a step are read after the next one has been started. A sequence that turns out to have ended was computed
for one token more, which is dropped; its blocks are free at once, because whoever gets them writes to them in a later
step, behind that one in the device's queue. What is decided by values (a search, penalties, log-probabilities, stop
strings) cannot run ahead: as long as such a request runs, every step waits for its tokens, as without overlap.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvplan_engine.device.allocation import allocating
from kvplan_engine.execution.model_runner import ModelRunner
from kvplan_engine.execution.output_processor import OutputProcessor
from kvplan_engine.execution.staging import TokensOnTheirWay
from kvplan_engine.offload.mover import BlockMover
from kvplan_engine.requests.outputs import StepOutput
from kvplan_engine.requests.stats import StepStats
from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.sampling.sampler import SampledTokens
from kvplan_engine.scheduling.scheduler import Scheduler

Count = Callable[[StepPlan], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Started:
    """A step whose tokens have not been taken in. tokens: on their way, or here already."""

    plan: StepPlan
    tokens: TokensOnTheirWay | SampledTokens


class StepLoop:
    """One engine's steps. runs_ahead: the next step may start before the tokens of the last are read.

    num_ahead: steps that were started before the tokens of the step before had been read. num_steps: all steps.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        mover: BlockMover,
        output_processor: OutputProcessor,
        count: Count,
        *,
        runs_ahead: bool,
    ) -> None:
        self.stats = StepStats(num_free_blocks=scheduler.pool.num_blocks)
        self.runs_ahead = runs_ahead
        self.num_ahead = 0
        self.num_steps = 0
        self._scheduler = scheduler
        self._runner = runner
        self._mover = mover
        self._output_processor = output_processor
        self._count = count
        self._started: _Started | None = None
        self._latest: np.ndarray | None = None  # the last step's tokens, by row, where they have been read

    def step(self) -> Rows[StepOutput]:
        """Start the next step and take in what has come: the tokens of the last one, or of this one, or none yet."""
        began = time.perf_counter()
        if self._started is not None and self._scheduler.needs_values:
            return self._take(began, self._count(StepPlan()))
        plan = self._scheduler.schedule()
        with allocating("runtime"):
            if plan.transfers:
                self._mover.run(plan.transfers)
            if not plan.num_tokens:
                return self._take(began, self._count(plan))
            started = self._start(plan)
        counts = self._count(plan)  # before finished sequences leave
        outputs = self._take(began, counts)
        self._started = started
        if isinstance(started.tokens, TokensOnTheirWay):
            return outputs
        new = self._take(began, counts)
        return [*outputs, *new] if outputs else new

    def _start(self, plan: StepPlan) -> _Started:
        """Queue the whole step, its draws included; waits only for draws that are made on the host."""
        runner, before = self._runner, self._started
        batch = runner.prepare(plan, self._latest, None if before is None else before.plan)
        logits = runner.forward(batch)
        self._scheduler.commit(plan)
        self.num_steps += 1
        self.num_ahead += before is not None
        if self.runs_ahead and plan.is_plainly_greedy and not plan.needs_token_details:
            return _Started(plan, runner.choose_likeliest(logits, plan))
        return _Started(plan, runner.sampler.sample_step(logits, plan))

    def _take(self, began: float, counts: dict[str, Any]) -> Rows[StepOutput]:
        """Take in the tokens of the step that was started last; [] when there is none."""
        started, self._started = self._started, None
        self._latest = None
        if started is None:
            return []
        with allocating("runtime"):
            tokens = started.tokens
            if isinstance(tokens, TokensOnTheirWay):
                array = tokens.wait()
                tokens = SampledTokens(array.tolist(), array)
        self._latest = tokens.array
        now = time.perf_counter()
        outputs = self._output_processor.take(started.plan, tokens.token_ids, tokens.details, now)
        self.stats = StepStats(
            **counts, step_seconds=now - began, longest_stall_seconds=self._output_processor.stall_seconds
        )
        return outputs
