"""Seconds of any step of an instance: prompts of many lengths read beside decoding sequences, over all its ranks.

The clocks of ``clocks`` know steps of decoding and single prompts; these, and ``MeasuredClock`` itself, take what a
play finds in a step. A step is of a whole group: with pipeline stages, one pass of all micro-batches. Data-parallel
groups that share their experts take it together, and wait for the fullest of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.estimate.speed.simulation.interface import GroupClock
from kvplan.estimate.speed.steps.clocks import Roofline
from kvplan.estimate.speed.steps.group_steps import AttendingStep, GroupSteps, reads_prompts
from kvplan.estimate.speed.steps.host import NO_HOST, HostWork
from kvplan.estimate.speed.steps.work import ModelWork


def step_of(
    clock: GroupClock, num_met: float, num_tokens: float, num_sequences: float, num_sampled: float
) -> AttendingStep:
    """Return ``clock``'s step of so much, by what it attends to."""
    if isinstance(clock, GroupSteps):
        return clock.step_of(num_met, num_tokens, num_sequences, num_sampled)
    return partial(clock.seconds_beside, num_met, num_tokens, num_sequences, num_sampled)


@dataclass(frozen=True)
class RooflineSteps(GroupSteps):
    """Steps by the data sheet. ``kv_bytes_per_token``: on a rank that holds all layers."""

    roofline: Roofline
    kv_bytes_per_token: float

    def step_of(self, num_met: float, num_tokens: float, num_sequences: float, num_sampled: float) -> AttendingStep:
        """See ``GroupSteps``."""
        roofline, work = self.roofline, self.roofline.work
        stages = work.layout.pipeline_parallel_size
        fullest = work.layout.share_of_stage(num_tokens, num_sequences)
        rows, met = num_tokens * fullest, num_met / stages
        weights, products = work.weights_read(met), roofline.product_seconds(rows, met)
        others = roofline.moving_seconds(rows) + roofline.collectives.seconds(rows, met) + roofline.step_seconds
        bandwidth, flops, counted = roofline.bandwidth, roofline.attention_flops, max(num_tokens, 1)
        kv_bytes = self.kv_bytes_per_token

        def seconds(num_kv_tokens: float, num_pairs: float) -> float:
            read = weights + num_kv_tokens * fullest * kv_bytes / stages
            seen = num_pairs / counted  # windows see what they see on average
            attention = work.attention_operations(num_tokens, seen) * fullest / (stages * flops)
            return stages * max(read / bandwidth, products + attention) + others

        return seconds


@dataclass(frozen=True, slots=True)
class BetweenSteps(GroupSteps):
    """The geometric middle of two clocks."""

    best: GroupClock
    worst: GroupClock

    def step_of(self, num_met: float, *rows: float) -> AttendingStep:
        """See ``GroupSteps``."""
        best, worst = step_of(self.best, num_met, *rows), step_of(self.worst, num_met, *rows)
        return lambda kv_tokens, pairs: float((best(kv_tokens, pairs) * worst(kv_tokens, pairs)) ** 0.5)


@dataclass(frozen=True, slots=True)
class ScaledSteps(GroupSteps):
    """Steps of a clock that take ``factor`` times as long."""

    clock: GroupClock
    factor: float

    def step_of(self, num_met: float, *rows: float) -> AttendingStep:
        """See ``GroupSteps``."""
        factor, step = self.factor, step_of(self.clock, num_met, *rows)
        return lambda kv_tokens, pairs: factor * step(kv_tokens, pairs)


@dataclass(frozen=True, slots=True)
class OffloadedSteps(GroupSteps):
    """Steps of which each stage reads ``offloaded_bytes`` of its weights from the host's memory (--cpu-offload-gb).

    vLLM's kernels read them over the bus where they multiply (vllm/model_executor/offloader/uva.py: views of pinned
    memory), so that nothing hides it; of experts those that a step's tokens are routed to. Each is counted once a step.
    DeepSeek-V4.1-Flash on 8 H20 with 35 GiB of each GPU's weights there answered 120 tokens/s to 64 at once, 0.53 s a
    step (issue 57771 of vllm-project/vllm): 61 GB/s, where PCIe 5.0 x16 has 64. A product of a long prompt may read a
    weight more than once; how often is not known. ``clock`` counts all weights, as if the GPU had them: 1 to 3 % more.
    """

    clock: GroupClock
    work: ModelWork
    offloaded_bytes: int
    bytes_per_second: float

    def step_of(self, num_met: float, *rows: float) -> AttendingStep:
        """See ``GroupSteps``."""
        stages = self.work.layout.pipeline_parallel_size
        share = self.work.weights_read(num_met / stages) / self.work.weights_read(_ALL_EXPERTS)
        over_the_bus = stages * share * self.offloaded_bytes / self.bytes_per_second
        step = step_of(self.clock, num_met, *rows)
        return lambda kv_tokens, pairs: step(kv_tokens, pairs) + over_the_bus


_ALL_EXPERTS: Final = 1e9
"""Tokens of a step that are routed to every expert."""
_FA2_TILE: Final = 64


def mixed_tile_rows(release: VllmRelease, compute_capability: str) -> int:
    """Return the tile rows of vLLM's attention in a step with prompts: 1 where each token costs what it attends to.

    FlashAttention 2, before Hopper and on consumers' Blackwell, takes such a step as one call: sequences that decode
    get a tile of 64 queries for each head, without packed heads and split caches (pull request 58013 of
    vllm-project/vllm). The first engine called two kernels.
    """
    is_second = compute_capability.split(".")[0] in ("8", "12")
    return _FA2_TILE if release.v1 and is_second else 1


def padded_pairs(
    tile_rows: int, num_tokens: float, num_sequences: float, num_kv_tokens: float, num_pairs: float
) -> float:
    """Pairs that attention computes: in a step with prompts, sequences of one token count as ``tile_rows`` queries.

    The last tile of a prompt is padded too: what it sees counts as much as what a decoding sequence holds.
    """
    return num_pairs + (tile_rows - 1) * num_kv_tokens if num_tokens > num_sequences else num_pairs


@dataclass(frozen=True, slots=True)
class HostedSteps(GroupSteps):
    """``clock``'s steps with what ``host`` adds, and attention of mixed steps as the engine's kernel does it.

    mixed_tile_rows: queries that a sequence of one token is padded to in a step with prompts (``mixed_tile_rows``).
    rows_per_sequence: of one that decodes, above 1 where draft tokens are verified. Data-parallel groups have a host
    each, and these work side by side.
    """

    clock: GroupClock
    host: HostWork
    num_layers: float
    num_mixtures: int
    mixed_tile_rows: int = 1
    rows_per_sequence: int = 1

    def step_of(self, num_met: float, num_tokens: float, num_sequences: float, num_sampled: float) -> AttendingStep:
        """See ``GroupSteps``."""
        gpu = step_of(self.clock, num_met, num_tokens, num_sequences, num_sampled)
        layers, mixtures, rows = self.num_layers, self.num_mixtures, self.rows_per_sequence
        gpu = _padded(gpu, self.mixed_tile_rows, num_tokens, num_sequences)
        if self.host is NO_HOST:
            return gpu
        if reads_prompts(num_tokens, num_sequences, rows):
            mixed = self.host.mixed_step(layers, mixtures, num_sequences, num_tokens)
            return lambda kv_tokens, pairs: mixed(gpu(kv_tokens, pairs))
        decoding, counted = self.host.decoding_step(layers, mixtures, num_sequences, rows), max(num_sequences, 1)
        return lambda kv_tokens, pairs: decoding(gpu(kv_tokens, pairs), kv_tokens / counted)


def _padded(step: AttendingStep, tile_rows: int, num_tokens: float, num_sequences: float) -> AttendingStep:
    """``step`` with the pairs that its kernel computes."""
    if tile_rows == 1 or num_tokens <= num_sequences:
        return step
    return lambda kv_tokens, pairs: step(
        kv_tokens, padded_pairs(tile_rows, num_tokens, num_sequences, kv_tokens, pairs)
    )
