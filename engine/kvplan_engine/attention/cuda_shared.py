"""Work items of prefixes that decoding sequences share: found and planned on the device, as all of a step's work is."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvplan_engine.attention.cuda_buffers import Buffers
from kvplan_engine.attention.metadata import AttentionMetadata
from kvplan_engine.kernels.cuda.attention.shape import (
    CHUNK_MULTIPLE,
    MIN_PART,
    MIN_SHARED,
    AttentionShape,
    PrefillLaunch,
)
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant
from kvplan_engine.kernels.cuda.params.common import PlanParams

PLAN_SHARED = KernelVariant("attention/plan/shared_prefix.cu", "plan_shared_prefixes")
PLAN_THREADS = 256
_ITEM_INTS = 8
_SEQUENCE_INTS = 4  # three rows of PlanParams.shared, one of first_items


@dataclass(frozen=True, slots=True)
class SharedWork:
    """What S sequences of a step share, as plan_shared_prefixes writes it."""

    launch: PrefillLaunch
    shared: torch.Tensor
    """[3, S] int32: PlanParams.shared."""
    first_items: torch.Tensor
    """[S] int32: each sequence's first item of decode, which plan_attention writes."""
    items: torch.Tensor
    """[num_items, 8] int32"""
    num_items: int
    num_slots: int
    """Parts of tiles that there is memory for."""


def shared_work(
    memory: torch.Tensor, buffers: Buffers, launch: PrefillLaunch, shape: AttentionShape, num_sequences: int
) -> tuple[torch.Tensor, SharedWork]:
    """``memory``, or a larger one, and its parts for so many sequences; makes room for parts of tiles too."""
    num_slots = buffers.reserve_parts(launch)
    num_items = launch.max_items(num_sequences // 2, num_sequences, shape.group, num_slots)
    own = _SEQUENCE_INTS * num_sequences
    memory = buffers.grown(memory, own + num_items * _ITEM_INTS)
    items = memory[own : own + num_items * _ITEM_INTS].view(num_items, _ITEM_INTS)
    of_sequences = memory[:own].view(_SEQUENCE_INTS, num_sequences)
    return memory, SharedWork(launch, of_sequences[:3], of_sequences[3], items, num_items, num_slots)


def plan_shared(runtime: CudaRuntime, work: SharedWork, shape: AttentionShape, metadata: AttentionMetadata) -> None:
    """Find the groups of the step and cut their work."""
    params = PlanParams(
        seq_lens=metadata.seq_lens.data_ptr(),
        query_starts=metadata.query_starts.data_ptr(),
        prefill_items=work.items.data_ptr(),
        block_tables=metadata.block_tables.data_ptr(),
        shared=work.shared.data_ptr(),
        num_sequences=metadata.seq_lens.shape[0],
        max_prefill_items=work.num_items,
        chunk_multiple=CHUNK_MULTIPLE,
        group=shape.group,
        tile_rows=work.launch.tile_rows,
        target_tiles=work.launch.target_items,
        num_slots=work.num_slots,
        min_part=MIN_PART,
        table_stride=metadata.block_tables.stride(0),
        block_size=shape.block_size,
        min_shared=MIN_SHARED,
    )
    runtime.kernel(PLAN_SHARED)((1, 1), PLAN_THREADS, 0, params)
