"""Seconds of any step of an instance: prompts of many lengths read beside decoding sequences, over all its ranks.

The clocks of ``clocks`` know steps of decoding and single prompts; these take what a play finds in a step. A step is of
the whole instance: with pipeline stages, one pass of all micro-batches; with data-parallel groups, one step in each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kvplan.estimate.speed.clocks import USUAL, MeasuredClock, Roofline
from kvplan.estimate.speed.collectives import CollectiveCost, collective_cost
from kvplan.estimate.speed.simulation import StepClock
from kvplan.estimate.speed.step_time import StepTimes
from kvplan.estimate.speed.work import ModelWork


def _ranks_beside(work: ModelWork) -> int:
    """Groups and stages, which each have a share of the sequences in hand."""
    return work.layout.data_parallel_size * work.layout.pipeline_parallel_size


@dataclass(frozen=True)
class RooflineSteps:
    """By the data sheet. ``kv_bytes_per_token``: on a rank that holds all layers."""

    roofline: Roofline
    kv_bytes_per_token: float

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        """One step, see ``simulation.StepClock``."""
        roofline, work = self.roofline, self.roofline.work
        stages, beside = work.layout.pipeline_parallel_size, _ranks_beside(work)
        read = work.stage_bytes(num_tokens, 0.0) + num_kv_tokens / beside * self.kv_bytes_per_token / stages
        operations = work.stage_operations(num_tokens) + self._attention(num_tokens, num_pairs) / beside / stages
        one = max(read / roofline.bandwidth, operations / roofline.flops)
        return stages * one + roofline.collectives.seconds(num_tokens / beside) + roofline.step_seconds

    def _attention(self, num_tokens: int, num_pairs: float) -> float:
        """Operations of one rank that had all layers and sequences; windows see what they see on average."""
        seen = num_pairs / max(num_tokens, 1)
        adds = num_tokens * sum(span.multiply_adds(seen) for span in self.roofline.work.attention)
        return 2 * adds / self.roofline.work.layout.tensor_parallel_size


@dataclass(frozen=True)
class MeasuredSteps:
    """By a profile's coefficients."""

    clock: MeasuredClock

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        """One step, see ``simulation.StepClock``."""
        stages, beside = self.clock.work.layout.pipeline_parallel_size, self._beside
        one = self._times(num_tokens / stages).seconds(
            -(-num_tokens // beside),
            -(-num_sequences // beside),
            -(-num_sampled // beside),
            round(num_kv_tokens / beside * self._bytes_per_token / stages),
            num_pairs / beside / stages,
        )
        return stages * one + self._collectives.seconds(num_tokens / beside)

    def _times(self, expert_tokens: float) -> StepTimes:
        return self._dense_times if not self.clock.work.num_experts else self.clock._step_times(expert_tokens)

    @cached_property
    def _dense_times(self) -> StepTimes:
        return self.clock._step_times(1.0)

    @cached_property
    def _beside(self) -> int:
        return _ranks_beside(self.clock.work)

    @cached_property
    def _bytes_per_token(self) -> float:
        return self.clock.kv_bytes / max(self.clock.context_tokens, 1.0)

    @cached_property
    def _collectives(self) -> CollectiveCost:
        return collective_cost(self.clock.work, self.clock.gpu, USUAL.links)


@dataclass(frozen=True, slots=True)
class BetweenSteps:
    """The geometric middle of two clocks."""

    best: StepClock
    worst: StepClock

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        """One step, see ``simulation.StepClock``."""
        best = self.best.seconds(num_tokens, num_sequences, num_sampled, num_kv_tokens, num_pairs)
        worst = self.worst.seconds(num_tokens, num_sequences, num_sampled, num_kv_tokens, num_pairs)
        return float((best * worst) ** 0.5)
