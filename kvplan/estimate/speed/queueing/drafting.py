"""Steps of an engine that drafts: what a drafter's passes take, and how many tokens a step yields.

With a share ``a`` of draft tokens accepted, each independently, a step with k draft tokens yields on average

    (1 - a^(k+1)) / (1 - a)      tokens (Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative
                                 Decoding, 2023, arXiv:2211.17192, equation 1)

and costs k passes of the drafter (one where it drafts all at once, none where tokens are looked up) and one step of the
model over k + 1 rows for each sequence, which take as many tokens of the step's budget (vllm/v1/core/sched/
scheduler.py). In a play every step yields that average. The drafter reads prompts too. Its passes are priced by the
data sheet, whatever was measured of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.estimate.speed.queueing.steps import BetweenSteps, RooflineSteps, step_of
from kvplan.estimate.speed.simulation.interface import GroupClock
from kvplan.estimate.speed.steps.clocks import BEST, USUAL, Efficiency, Roofline
from kvplan.estimate.speed.steps.group_steps import AttendingStep, GroupSteps
from kvplan.estimate.speed.steps.work import ModelWork

_USUAL: Final = (0.5, 0.9)
"""Acceptance rates of drafters that are worth having."""


def expected_tokens(acceptance_rate: float, num_tokens: int) -> float:
    """Tokens that a step yields on average with ``num_tokens`` draft tokens: from 1 to ``num_tokens`` + 1."""
    return sum(acceptance_rate**accepted for accepted in range(num_tokens + 1))


@dataclass(frozen=True, slots=True)
class DraftWork:
    """A drafter's passes in one step. ``kv_bytes``: of one sequence in its own cache, on a rank that holds it all.

    ``work`` is None where tokens are looked up.
    """

    num_tokens: int
    num_passes: int = 0
    work: ModelWork | None = None
    kv_bytes: float = 0.0


class DrafterOn(NamedTuple):
    """A drafter on a deployment, and its weights on each rank."""

    draft: DraftWork
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class Drafting:
    """A drafter each of whose tokens the model accepts with a chance of ``acceptance_rate``.

    is_assumed: nobody said so; what is usual is from 0.5 to 0.9.
    """

    draft: DraftWork
    acceptance_rate: float
    is_assumed: bool = False

    @property
    def rows(self) -> int:
        """Count the rows of a sequence that decodes, in a step of the model."""
        return self.draft.num_tokens + 1

    @property
    def tokens_per_step(self) -> float:
        return expected_tokens(self.acceptance_rate, self.draft.num_tokens)

    @property
    def spread(self) -> tuple[float, float]:
        """Between which factors of ``tokens_per_step`` it may lie."""
        if not self.is_assumed:
            return 1.0, 1.0
        low, high = (expected_tokens(rate, self.draft.num_tokens) / self.tokens_per_step for rate in _USUAL)
        return low, high

    def passes(self, gpu: GpuProfile, context_tokens: float, reached: Efficiency | None) -> DraftPasses:
        """The drafter's for sequences of ``context_tokens``; ``reached``: None for the middle of both ends."""
        work = self.draft.work
        if work is None or not self.draft.num_passes:
            return DraftPasses(None, 0, self.rows)

        def at(efficiency: Efficiency) -> RooflineSteps:
            # Passes follow one another within a step: what a step costs on top is paid once.
            roofline = Roofline.of(work, gpu, self.draft.kv_bytes, replace(efficiency, step_seconds=0.0))
            return RooflineSteps(roofline, self.draft.kv_bytes / context_tokens)

        clock: GroupClock = BetweenSteps(at(BEST), at(USUAL)) if reached is None else at(reached)
        return DraftPasses(clock, self.draft.num_passes, self.rows)


@dataclass(frozen=True, slots=True)
class DraftPasses:
    """``clock``: of one pass; None where tokens are looked up. rows: as for ``Drafting``."""

    clock: GroupClock | None
    num_passes: int
    rows: int

    def seconds(self, num_met: float, num_tokens: float, num_sequences: float, num_kv_tokens: float) -> float:
        """Seconds of all passes in a step of the model with so much in it: the first reads the prompts, too."""
        return self.of(num_met, num_tokens, num_sequences)(num_kv_tokens)

    def of(self, num_met: float, num_tokens: float, num_sequences: float) -> Callable[[float], float]:
        """Return the seconds by num_kv_tokens, as for ``seconds``."""
        if self.clock is None:
            return lambda kv_tokens: 0.0
        groups = num_met / num_tokens
        prompts = max(num_tokens - self.rows * num_sequences, 0.0)
        first = num_sequences + prompts
        share = 1 + prompts / first
        reading = step_of(self.clock, first * groups, first, num_sequences, num_sequences)
        if self.num_passes == 1:
            return lambda kv_tokens: reading(kv_tokens, kv_tokens * share)
        further = step_of(self.clock, num_sequences * groups, num_sequences, num_sequences, num_sequences)
        others = self.num_passes - 1
        return lambda kv_tokens: reading(kv_tokens, kv_tokens * share) + others * further(kv_tokens, kv_tokens)


@dataclass(frozen=True, slots=True)
class DraftedSteps(GroupSteps):
    """``clock``'s steps, with the drafter's ``passes`` behind each."""

    clock: GroupClock
    passes: DraftPasses

    def step_of(self, num_met: float, num_tokens: float, num_sequences: float, num_sampled: float) -> AttendingStep:
        """See ``GroupSteps``."""
        step = step_of(self.clock, num_met, num_tokens, num_sequences, num_sampled)
        passes = self.passes.of(num_met, num_tokens, num_sequences)
        return lambda kv_tokens, pairs: step(kv_tokens, pairs) + passes(kv_tokens)
