"""Seconds of a step by coefficients that were measured: by a sweep on the device, or kernel by kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.estimate.speed.steps.clocks import USUAL, DeviceSpeed
from kvplan.estimate.speed.steps.collectives import CollectiveCost, LinkEfficiency, collective_cost
from kvplan.estimate.speed.steps.group_steps import AttendingStep, GroupSteps, reads_prompts
from kvplan.estimate.speed.steps.rank_step import (
    KernelSpeed,
    RankStep,
    attention_seconds,
    plain_attention_seconds,
    seconds_of_rows,
    whole_tiles,
)
from kvplan.estimate.speed.steps.step_time import padded_rows
from kvplan.estimate.speed.steps.work import ModelWork


@dataclass(frozen=True)
class MeasuredClock(GroupSteps):
    """The profile's coefficients on this model's work. ``context_tokens``: what a sequence holds on average.

    ``kv_bytes``: of one such sequence's cache, on a rank that holds all layers. ``rows_per_sequence``: of one that
    decodes, more than 1 where draft tokens are verified.
    """

    work: ModelWork
    gpu: GpuProfile
    kv_bytes: float
    device: DeviceSpeed
    context_tokens: float
    rows_per_sequence: int = 1

    def step_of(self, num_met: float, num_tokens: float, num_sequences: float, num_sampled: float) -> AttendingStep:
        """See ``GroupSteps``; the fullest of its stages decides."""
        work, speed = self.work, self._speed
        stages, fullest = work.layout.pipeline_parallel_size, work.layout.share_of_stage(num_tokens, num_sequences)
        tokens, expert_tokens = num_tokens * fullest, num_met / stages
        rows = self._rows(tokens, num_sequences * fullest, num_sampled * fullest, expert_tokens)
        without, sent = seconds_of_rows(speed, rows), self._collectives.seconds(tokens, expert_tokens)
        has_latents = speed.latent is not None and work.num_latent_layers > 0

        def seconds(num_kv_tokens: float, num_pairs: float) -> float:
            kv_tokens, pairs = num_kv_tokens * fullest, num_pairs * fullest
            kv_bytes = kv_tokens * self.kv_bytes / self.context_tokens
            if has_latents:
                attending = attention_seconds(speed, attends(rows, work, tokens, kv_bytes, pairs, kv_tokens))
            else:
                operations = attention_operations(work, tokens, pairs)
                attending = plain_attention_seconds(speed.base, kv_bytes / stages, operations)
            return stages * float(without + attending) + sent

        return seconds

    def _rows(self, tokens: float, sequences: float, sampled: float, expert_tokens: float) -> RankStep:
        speed = self.device.speed
        tile_rows, expert_tile_rows = speed.all_tile_rows(expert_tokens, self.work.num_experts)
        return rank_rows(
            self.work,
            tokens=tokens,
            rows=whole_tiles(padded_rows(tokens, speed.base.row_step), tile_rows),
            sequences=sequences,
            sampled=whole_tiles(sampled, tile_rows),
            expert_tokens=expert_tokens,
            expert_tile_rows=expert_tile_rows,
            rows_per_sequence=self.rows_per_sequence,
        )

    @cached_property
    def _speed(self) -> KernelSpeed:
        """Another format than the profile's multiplies as much faster or slower as the data sheet says."""
        gpu, device = self.gpu, self.device
        if gpu.is_cpu:
            return device.speed
        factor = gpu.flops(self.work.compute_dtype) / gpu.flops(device.dtype.removesuffix("-block"))
        speed, experts = device.speed, device.speed.experts
        return replace(
            speed,
            base=replace(speed.base, flops=speed.base.flops * factor),
            experts=None if experts is None else replace(experts, flops=experts.flops * factor),
        )

    @cached_property
    def _collectives(self) -> CollectiveCost:
        return collective_cost(self.work, self.gpu, link_efficiency(self.device.speed, self.work, self.gpu))


def link_efficiency(speed: KernelSpeed, work: ModelWork, gpu: GpuProfile) -> LinkEfficiency:
    """Return it as the profile measured all-reduces; as is usual where it did not, or over NVLink that ranks lack."""
    ranks = work.layout.talking_ranks
    lacks_nvlink = gpu.bridged_gpus is not None and not gpu.joins_by_nvlink(ranks)
    if speed.links is None or lacks_nvlink:
        return USUAL.links
    return LinkEfficiency(speed.links.share_of(ranks), speed.links.seconds(ranks), sends_to_chosen=False)


def rank_step(
    work: ModelWork,
    *,
    tokens: float,
    rows: float,
    sequences: float,
    sampled: float,
    kv_bytes: float,
    pairs: float,
    expert_tokens: float,
    kv_tokens: float = 0.0,
    expert_tile_rows: float = 1.0,
    rows_per_sequence: int = 1,
) -> RankStep:
    """One step of one stage on one rank: ``rank_rows``, and what they attend to (``attends``)."""
    found = rank_rows(
        work,
        tokens=tokens,
        rows=rows,
        sequences=sequences,
        sampled=sampled,
        expert_tokens=expert_tokens,
        expert_tile_rows=expert_tile_rows,
        rows_per_sequence=rows_per_sequence,
    )
    return attends(found, work, tokens, kv_bytes, pairs, kv_tokens)


def rank_rows(
    work: ModelWork,
    *,
    tokens: float,
    rows: float,
    sequences: float,
    sampled: float,
    expert_tokens: float,
    expert_tile_rows: float,
    rows_per_sequence: int,
) -> RankStep:
    """One step of one stage on one rank, without attention.

    ``tokens`` of the rank's group are computed, ``rows`` multiplied; ``expert_tokens`` of all groups meet in the
    experts, which multiply ``expert_tile_rows`` at once.
    """
    tp, stages = work.layout.tensor_parallel_size, work.layout.pipeline_parallel_size
    dense = max(work.active_parameters - work.active_expert_parameters - work.head_parameters, 0)
    multiplied = work.tiled_expert_tokens(expert_tokens, expert_tile_rows)
    return RankStep(
        num_layers=work.num_layers / stages,
        num_sequences=sequences,
        body_bytes=work.dense_bytes - work.head_bytes + tokens * work.rank_activation_bytes() / stages,
        body_operations=2 * dense * rows / tp / stages,
        head_bytes=work.head_bytes if sampled else 0.0,
        head_operations=2 * work.head_parameters * sampled / tp / stages,
        kv_bytes=0.0,
        attention_operations=0.0,
        num_expert_layers=work.num_expert_layers / stages,
        expert_bytes=work.expert_bytes * work.touched_experts(expert_tokens),
        expert_operations=2 * work.active_expert_parameters * multiplied / work.layout.expert_ranks / stages,
        routed_bytes=expert_tokens * work.routed_bytes() / stages,
        num_latent_layers=work.num_latent_layers / stages,
        latent_tokens=tokens * work.num_latent_layers / tp / stages,
        reads_prompts=reads_prompts(tokens, sequences, rows_per_sequence),
        num_tokens=tokens / stages,
        num_choosing_layers=work.num_choosing_layers / stages,
        choosing_tokens=tokens * work.num_choosing_layers / stages,
    )


def attends(
    step: RankStep, work: ModelWork, tokens: float, kv_bytes: float, pairs: float, kv_tokens: float
) -> RankStep:
    """``step`` of ``tokens`` with what it attends to.

    ``kv_bytes`` of ``kv_tokens`` are read of all layers, and each token attends to ``pairs / tokens`` others on
    average.
    """
    stages = work.layout.pipeline_parallel_size
    return step._replace(
        kv_bytes=kv_bytes / stages,
        attention_operations=attention_operations(work, tokens, pairs),
        scored_pairs=pairs * work.scored_keys / stages,
        seen_pairs=pairs * work.num_sparse_layers / stages,
        cached_pairs=min(pairs, kv_tokens) * work.scored_keys / stages,
        chosen_pairs=min(pairs, tokens * work.chosen_tokens) * work.num_sparse_layers / stages,
    )


def attention_operations(work: ModelWork, tokens: float, pairs: float) -> float:
    """Operations of attention of ``tokens`` that attend to ``pairs``, in one stage on one rank."""
    seen = pairs / tokens
    attended = tokens * sum([span.multiply_adds(seen) for span in work.attention])
    return 2 * attended / work.layout.tensor_parallel_size / work.layout.pipeline_parallel_size
