"""How the attention kernels are compiled and launched for a model's shape on a device: pure arithmetic.

Every size here mirrors a constant in csrc/cuda (named in the comments); the emulated tests run both sides together.
"""

from __future__ import annotations

import torch

from kvplan_engine.kernels.cuda.attention.latent_launch import latent_decode, latent_prefill, uses_latent_kernel
from kvplan_engine.kernels.cuda.attention.shape import WARP_LANES, AttentionShape, DecodeLaunch, PrefillLaunch
from kvplan_engine.kernels.cuda.attention.wgmma_launch import uses_wgmma_kernel, wgmma_prefill
from kvplan_engine.kernels.cuda.launching import families
from kvplan_engine.kernels.cuda.launching.runtime import DeviceProperties
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError, KernelVariant, variant

_RESERVED_SHARED_BYTES = 1024  # what the hardware keeps of a block's shared memory
_MAX_STAGES = 4
_PREFILL_WARPS = 4
_WARPS_AT_ONCE = 8  # of 255 registers a thread, on a multiprocessor with 65,536


def uses_tensor_cores(shape: AttentionShape, properties: DeviceProperties, family: str) -> bool:
    """Whether the mma kernels run: 16-bit arithmetic on compute capability 8.0 or newer, a cache without scales.

    family: of ``families``, the kernel in question; one that the device avoids does not run.
    """
    return (
        families.of_cache(family, shape.cache) not in properties.avoided
        and shape.other_value_size is None
        and properties.has_tensor_kernels
        and shape.scalar in (torch.float16, torch.bfloat16)
        and shape.cache is not torch.int8
    )


def decode_launch(
    shape: AttentionShape, properties: DeviceProperties, warps: int = 4, stages: int | None = None
) -> DecodeLaunch:
    """Sizes of the decode kernel; ``stages`` None takes as many as let two blocks share a multiprocessor."""
    shape.check()
    if uses_latent_kernel(shape, properties):
        return latent_decode(shape, properties)
    if uses_tensor_cores(shape, properties, families.DECODE_MMA):
        return _decode_mma(shape, properties, warps, stages)
    return _decode_simple(shape, properties, warps)


def _decode_mma(shape: AttentionShape, properties: DeviceProperties, warps: int, stages: int | None) -> DecodeLaunch:
    stage_bytes = decode_stage_bytes(shape)
    while warps > 1 and 2 * warps * stage_bytes > properties.shared_bytes_per_block:
        warps //= 2
    if stages is None:
        half = properties.shared_bytes_per_multiprocessor // 2 - _RESERVED_SHARED_BYTES
        stages = max(2, min(_MAX_STAGES, half // (warps * stage_bytes)))
    heads = min(shape.group, 8 if shape.head_size > 128 else 16)  # decode_mma.cu: HEADS
    chosen = variant(
        "attention/decode/decode_mma.cu", "decode_attention", **shape.defines(), warps=warps, stages=stages
    )
    return _decode_launch(shape, properties, chosen, warps, heads, warps * stages * stage_bytes)


def decode_stage_bytes(shape: AttentionShape) -> int:
    """decode_mma.cu: STAGE_BYTES, 16 tokens of K and V with the row pitches that avoid bank conflicts."""
    row_chunks = shape.head_size * shape.cache.itemsize // 16
    return 16 * 16 * ((row_chunks | 1) + (row_chunks + 1) // 4 * 4 + 2)


def _decode_lanes(row_vectors: int) -> int:
    """decode_simple.cu: LANES that share a token's key."""
    return 32 if row_vectors > 16 else 16 if row_vectors > 8 else 8 if row_vectors > 4 else 4


def _decode_simple(shape: AttentionShape, properties: DeviceProperties, warps: int) -> DecodeLaunch:
    vector = 16 // shape.cache.itemsize
    row_vectors = shape.head_size // vector
    vectors = max(-(-row_vectors // WARP_LANES), -(-(shape.value_size // vector) // _decode_lanes(row_vectors)))
    heads = min(shape.group, max(1, 64 // (vector * vectors)))  # decode_simple.cu: HEADS
    chosen = variant("attention/decode/decode_simple.cu", "decode_attention", **shape.defines(), warps=warps)
    return _decode_launch(shape, properties, chosen, warps, heads, 0)


def _decode_launch(
    shape: AttentionShape,
    properties: DeviceProperties,
    chosen: KernelVariant,
    warps: int,
    heads: int,
    buffer_bytes: int,
) -> DecodeLaunch:
    blocks_per_item = shape.num_kv_heads * -(-shape.group // heads)
    merge_bytes = 4 * (warps * heads * (shape.value_size + 2) + 1)  # decode.cuh: MergeBuffers
    without_weights = max(buffer_bytes, merge_bytes)
    blocks_at_once = _blocks_per_multiprocessor(without_weights, properties) * properties.num_multiprocessors
    target_chunks = max(1, blocks_at_once // blocks_per_item)
    weight_bytes = 4 * heads * (target_chunks + 2 + 2)  # decode.cuh: merge_items
    return DecodeLaunch(chosen, warps * WARP_LANES, blocks_per_item, target_chunks, max(without_weights, weight_bytes))


def _blocks_per_multiprocessor(shared_bytes: int, properties: DeviceProperties, most: int = 2) -> int:
    """How many blocks fit by shared memory; at most ``most``, because registers allow no more."""
    return max(1, min(most, properties.shared_bytes_per_multiprocessor // (shared_bytes + _RESERVED_SHARED_BYTES)))


def prefill_launch(shape: AttentionShape, properties: DeviceProperties, wgmma: bool = False) -> PrefillLaunch:
    """Sizes of the prefill kernel; ``wgmma``: that of warp groups, where it has ``shape`` on the device."""
    shape.check()
    if wgmma and uses_wgmma_kernel(shape, properties):
        return wgmma_prefill(shape, properties)
    if uses_latent_kernel(shape, properties):
        return latent_prefill(shape, properties)
    if uses_tensor_cores(shape, properties, families.PREFILL_MMA):
        return _prefill_mma(shape, properties, _PREFILL_WARPS, row_tiles=1 if shape.head_size > 128 else 2)
    return _prefill_simple(shape, properties)


def short_prefill_launch(shape: AttentionShape, properties: DeviceProperties) -> PrefillLaunch | None:
    """Launch for steps with at most 16 rows a sequence: blocks of one warp; None where there is no such kernel."""
    shape.check()
    if uses_latent_kernel(shape, properties) or not uses_tensor_cores(shape, properties, families.PREFILL_SHORT):
        return None
    return _prefill_mma(shape, properties, warps=1, row_tiles=1)


def shared_prefill_launch(shape: AttentionShape, properties: DeviceProperties) -> PrefillLaunch | None:
    """Launch for decoding sequences' shared prefixes; None where there is no such kernel (slopes: rows differ)."""
    shape.check()
    if uses_latent_kernel(shape, properties) or not uses_tensor_cores(shape, properties, families.SHARED_PREFIX):
        return None
    if shape.has_slopes or shape.has_value_tables:
        return None
    return _prefill_mma(shape, properties, _PREFILL_WARPS, row_tiles=1, is_shared=True)


def _prefill_mma(
    shape: AttentionShape, properties: DeviceProperties, warps: int, row_tiles: int, *, is_shared: bool = False
) -> PrefillLaunch:
    """row_tiles: of 16 rows in each warp. is_shared: for the rows of several decoding sequences."""
    kv_tile = 32 if shape.head_size > 128 else 64
    tile_rows = warps * row_tiles * 16
    pitch = (shape.head_size * 2 // 16 | 1) * 16  # prefill_mma.cu: PITCH
    chosen = variant(
        "attention/prefill/prefill_mma.cu",
        "prefill_attention",
        **shape.defines(),
        warps=warps,
        row_tiles=row_tiles,
        kv_tile=kv_tile,
        **({"shared": 1} if is_shared else {}),
    )
    part_floats = warps * WARP_LANES * row_tiles * (shape.head_size // 2 + 4)  # prefill_mma.cu: PART_FLOATS
    shared_bytes = pitch * (tile_rows + 2 * kv_tile)
    return _prefill_launch(shape, properties, chosen, warps, tile_rows, shared_bytes, part_floats)


def _prefill_launch(
    shape: AttentionShape,
    properties: DeviceProperties,
    chosen: KernelVariant,
    warps: int,
    tile_rows: int,
    shared_bytes: int,
    part_floats: int,
) -> PrefillLaunch:
    most = _WARPS_AT_ONCE // warps
    blocks_at_once = _blocks_per_multiprocessor(shared_bytes, properties, most) * properties.num_multiprocessors
    target_items = max(1, blocks_at_once // shape.num_kv_heads)
    launch = (chosen, warps * WARP_LANES, tile_rows, shape.num_kv_heads, shared_bytes)
    return PrefillLaunch(*launch, target_items=target_items, part_floats=part_floats)


def _prefill_simple(shape: AttentionShape, properties: DeviceProperties) -> PrefillLaunch:
    """A launch with as many rows as let the queries lie beside a tile of keys. CudaKernelError if not even one does."""
    warps = _PREFILL_WARPS
    pitch = 4 * (max(shape.head_size, shape.value_size) + 1)  # prefill_simple.cu: PITCH floats
    room = properties.shared_bytes_per_block - pitch * WARP_LANES
    rows_per_warp = min(4, room // (4 * shape.head_size * warps))
    if rows_per_warp < 1:
        raise CudaKernelError(
            f"heads of {shape.head_size} elements do not fit the shared memory of {properties.name}",
            hint="they need a GPU of compute capability 7.0 or 8.0 and newer",
        )
    tile_rows = warps * rows_per_warp
    chosen = variant(
        "attention/prefill/prefill_simple.cu",
        "prefill_attention",
        **shape.defines(),
        warps=warps,
        rows_per_warp=rows_per_warp,
    )
    shared_bytes = pitch * WARP_LANES + 4 * shape.head_size * tile_rows
    own_values = -(-shape.value_size // WARP_LANES)
    part_floats = tile_rows * WARP_LANES * (own_values + 2)  # prefill_simple.cu: PART_FLOATS
    return _prefill_launch(shape, properties, chosen, warps, tile_rows, shared_bytes, part_floats)
