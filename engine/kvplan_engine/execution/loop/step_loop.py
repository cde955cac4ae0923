"""Runs an engine's steps: asynchronous scheduling, one step ahead of the tokens where that is possible.

A step is scheduled by counts; the values of its input tokens may still be on the device. So step n + 1 is scheduled and
started while the device computes step n, and the device never waits for the host:

    host     schedule 1  start 1  schedule 2  start 2  take 1  schedule 3  start 3  take 2 ...
    device                        step 1 ............  step 2 ................  step 3 .....

The tokens of a step are read after the next step has been started. A sequence that turns out to have ended has computed
one token too many, which is dropped. Its blocks are free at once: whoever gets them writes to them in a later step,
which the device runs after this one. So a stop string ends its sequence a step late, as a stop token does. Steps that
depend on values (beam search, and penalties where the host counts tokens) cannot run ahead: while such a request runs,
every step waits for its tokens. Tokens that the host draws itself, or describes, are waited for in their own step. With
speculation no step runs ahead: what the next one computes follows from this one's tokens.

A call takes the tokens of one step at most. ``stats`` are those of the step whose tokens were taken last: its counts
from when it was started, and its time, from its start or from when the tokens of the step before were there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvplan_engine.device.allocation import allocating
from kvplan_engine.execution.loop.output_processor import OutputProcessor
from kvplan_engine.execution.loop.step_runner import UNOBSERVED, StepObserver, StepRunner
from kvplan_engine.offload.mover import Mover
from kvplan_engine.requests.outputs import StepOutput
from kvplan_engine.requests.status import SequenceStatus
from kvplan_engine.requests.step_plan import StepPlan, StepStats
from kvplan_engine.sampling.sampler import SampledTokens
from kvplan_engine.scheduling.scheduler import Scheduler
from kvplan_engine.speculation import Proposer

Count = Callable[[StepPlan], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Choice:
    """The tokens of a step. wait: for them. is_pending: they may still be on the device."""

    wait: Callable[[], SampledTokens]
    is_pending: bool


@dataclass(frozen=True, slots=True)
class _Started:
    """A step whose tokens are not processed yet. tokens: see _Choice. began: the call that started it.

    counts: StepStats as the step was started, before sequences that the step before finished have left.
    """

    plan: StepPlan
    tokens: _Choice
    began: float
    counts: dict[str, Any]


class StepLoop:
    """One engine's steps. runs_ahead: the next step may start before the tokens of the last are read.

    num_ahead: steps that were started before the tokens of the step before had been read. num_steps: all steps.
    observer: is told of every step. proposer: of the tokens that the next step verifies; None: no speculation.
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
        proposer: Proposer | None = None,
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
        self._proposer = proposer
        self._started: _Started | None = None
        self._latest: np.ndarray | None = None  # the last step's tokens, by row, where they have been read
        self._took = 0.0  # when the last tokens were there
        self._is_moving = False

    def step(self) -> Rows[StepOutput]:
        """Start the next step, and process the tokens that are there: of the last step, of this one, or none yet.

        Where it raises, no step is under way any more: the next call computes what is lost again.
        """
        try:
            return self._step()
        except BaseException:
            self._started = self._latest = None
            self._scheduler.begin_anew(keeps_cache=not self._is_moving)
            self._is_moving = False
            raise

    def _step(self) -> Rows[StepOutput]:
        began = time.perf_counter()
        self.observer.began()
        if self._started is not None and (self._needs_values or not self._started.tokens.is_pending):
            return self._take()
        plan = self._scheduler.schedule()
        self.observer.planned(plan)
        self.observer.ended("schedule")
        with allocating("runtime"):
            if plan.transfers:
                self._is_moving = True
                self._mover.run(plan.transfers)
                self._is_moving = False
                self.observer.ended("transfer")
            if not plan.num_tokens:
                return self._take()
            tokens = self._start(plan)
        counts = self._count(plan)
        self.observer.ended("count")
        before, outputs = self._started, self._take(is_followed=True)
        self._started = _Started(plan, tokens, began, counts)
        return outputs if tokens.is_pending or before is not None else self._take()

    @property
    def _needs_values(self) -> bool:
        """Whether the next step cannot be decided or drawn before the tokens of the last one are known."""
        scheduler = self._scheduler
        return scheduler.needs_values or (scheduler.has_penalties and not self._runner.chooser.counts_tokens)

    def _start(self, plan: StepPlan) -> _Choice:
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
        tokens = self._sample(plan, logits)
        ended("sample")
        return tokens

    def _sample(self, plan: StepPlan, logits: Any) -> _Choice:
        runner = self._runner
        if self.runs_ahead and runner.chooser.can_choose_ahead(plan):
            return _Choice(runner.chooser.choose_ahead(logits, plan).wait, is_pending=True)
        sampled = runner.chooser.sample_step(logits, plan)
        if plan.wants_prompt_logprobs:
            runner.take_prompt_logprobs(plan)
        runner.follow(plan, sampled)
        return _Choice(lambda: sampled, is_pending=False)

    def _propose(self, proposer: Proposer, plan: StepPlan) -> None:
        """Let the next step compute drafts of the sequences that got a token and go on."""
        for sequence in plan.sampled:
            if sequence.status is SequenceStatus.RUNNING and sequence.request.beams is None:
                drafts = proposer.propose(sequence)
                if drafts:
                    self._scheduler.propose(sequence, drafts)

    def _take(self, *, is_followed: bool = False) -> Rows[StepOutput]:
        """Process the tokens of the step that was started last; [] when there is none. is_followed: see StepStats."""
        started, self._started = self._started, None
        self._latest = None
        if started is None:
            return []
        with allocating("runtime"):
            tokens = started.tokens.wait()
        self.observer.ended("wait")
        self._latest = tokens.array
        now = time.perf_counter()
        outputs = self._output_processor.take(started.plan, tokens, now)
        if self._proposer is not None:
            self._propose(self._proposer, started.plan)
        self.observer.ended("process")
        self.stats = StepStats(
            **started.counts,
            step_seconds=now - max(started.began, self._took),
            longest_stall_seconds=self._output_processor.stall_seconds,
            is_followed=is_followed,
        )
        self._took = now
        return outputs
