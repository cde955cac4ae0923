"""How prefill_wgmma.cu is compiled and launched: products of warp groups, which compute capability 9.0 alone has."""

from __future__ import annotations

from dataclasses import replace

import torch

from kvplan_engine.kernels.cuda.attention.shape import WARP_LANES, AttentionShape, PrefillLaunch
from kvplan_engine.kernels.cuda.launching.runtime import DeviceProperties
from kvplan_engine.kernels.cuda.launching.variants import variant

_WARPS = 12  # two warp groups of consumers and the producer's
_CONSUMERS = 256
_TILE_ROWS = 128
_KV_TILE = 128
_STAGES = 2
_PANEL_ALIGNMENT = 1024  # hopper.cuh
_SMALLEST_BLOCK = 16


def uses_wgmma_kernel(shape: AttentionShape, properties: DeviceProperties) -> bool:
    """Whether the kernel has ``shape``: heads of 64 or 128, KV of 16 bits in blocks of a power of two, plain scores."""
    block_size = shape.block_size
    return (
        properties.capability == (9, 0)
        and shape.scalar in (torch.float16, torch.bfloat16)
        and shape.cache is shape.scalar
        and shape.other_value_size is None
        and shape.head_size in (64, 128)
        and block_size >= _SMALLEST_BLOCK
        and block_size & (block_size - 1) == 0
        and not (shape.has_softcap or shape.has_slopes)
    )


def wgmma_prefill(shape: AttentionShape, properties: DeviceProperties) -> PrefillLaunch:
    """Sizes of the kernel, of which one block at a time is on a multiprocessor."""
    chosen = variant(
        "attention/prefill/prefill_wgmma.cu",
        "prefill_attention",
        **shape.defines(),
        warps=_WARPS,
        kv_tile=_KV_TILE,
        stages=_STAGES,
    )
    row_bytes = shape.head_size * shape.scalar.itemsize
    ring_bytes = 2 * _STAGES * _KV_TILE * row_bytes
    barrier_bytes = 4 * _STAGES * 8
    return PrefillLaunch(
        replace(chosen, only_for="sm_90a"),
        threads=_WARPS * WARP_LANES,
        tile_rows=_TILE_ROWS,
        blocks_per_item=shape.num_kv_heads,
        shared_bytes=_PANEL_ALIGNMENT + _TILE_ROWS * row_bytes + ring_bytes + barrier_bytes,
        box_rows=min(shape.block_size, _KV_TILE),
        target_items=max(1, properties.num_multiprocessors // shape.num_kv_heads),
        part_floats=_CONSUMERS * (shape.head_size // 2 + 4),  # prefill_wgmma.cu: PART_FLOATS
    )
