"""Seconds of any step of an instance: prompts of many lengths read beside decoding sequences, over all its ranks.

The clocks of ``clocks`` know steps of decoding and single prompts; these, and ``MeasuredClock`` itself, take what a
play finds in a step. A step is of the whole instance: with pipeline stages, one pass of all micro-batches; with
data-parallel groups, one step in each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvplan.catalog.engines import VllmRelease
from kvplan.estimate.speed.simulation.interface import StepClock
from kvplan.estimate.speed.steps.clocks import Roofline
from kvplan.estimate.speed.steps.host import HostWork
from kvplan.estimate.speed.steps.work import ModelWork


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


_FA2_TILE: Final = 64


def mixed_tile_rows(release: VllmRelease, compute_capability: str) -> int:
    """Of vLLM's attention in a step with prompts: 1 where each token costs what it attends to.

    FlashAttention 2, before Hopper and on consumers' Blackwell, takes such a step as one call: sequences that decode
    get a tile of 64 queries for each head, without packed heads and split caches (pull request 58013 of
    vllm-project/vllm). The first engine called two kernels.
    """
    is_second = compute_capability.split(".")[0] in ("8", "12")
    return _FA2_TILE if release.v1 and is_second else 1


def padded_pairs(tile_rows: int, num_tokens: int, num_sequences: int, num_kv_tokens: int, num_pairs: float) -> float:
    """Pairs that attention computes: in a step with prompts, sequences of one token count as ``tile_rows`` queries.

    The last tile of a prompt is padded too: what it sees counts as much as what a decoding sequence holds.
    """
    return num_pairs + (tile_rows - 1) * num_kv_tokens if num_tokens > num_sequences else num_pairs


@dataclass(frozen=True, slots=True)
class HostedSteps:
    """``clock``'s steps with what ``host`` adds, and attention of mixed steps as the engine's kernel does it.

    groups: data-parallel ones, whose hosts work side by side. mixed_tile_rows: queries that a sequence of one token is
    padded to in a step with prompts (``mixed_tile_rows``).
    """

    clock: StepClock
    host: HostWork
    num_layers: int
    num_mixtures: int
    groups: int = 1
    mixed_tile_rows: int = 1

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        """One step, see ``simulation.StepClock``."""
        num_pairs = padded_pairs(self.mixed_tile_rows, num_tokens, num_sequences, num_kv_tokens, num_pairs)
        gpu = self.clock.seconds(num_tokens, num_sequences, num_sampled, num_kv_tokens, num_pairs)
        of_a_host = num_sequences / self.groups
        if num_tokens > num_sequences:
            rows = num_tokens / self.groups
            return self.host.mixed_seconds(gpu, self.num_layers, self.num_mixtures, of_a_host, rows)
        context = num_kv_tokens / max(num_sequences, 1)
        return self.host.decode_seconds(gpu, self.num_layers, self.num_mixtures, of_a_host, context)
