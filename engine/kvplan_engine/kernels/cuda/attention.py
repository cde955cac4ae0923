"""How the attention kernels are compiled and launched for a model's shape on a device: pure arithmetic.

Every size here mirrors a constant in csrc/cuda (named in the comments); the emulated tests run both sides together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kvplan_engine.kernels.cuda.launching import families
from kvplan_engine.kernels.cuda.launching.runtime import DeviceProperties
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError, KernelVariant, variant

# What the attention kernels are specialised for, and how one is launched.


HEAD_SIZES = (64, 80, 96, 128, 256)
"""The common ones, which tests compile and measure; any multiple of HEAD_MULTIPLE up to the largest works."""
HEAD_MULTIPLE = 16
MOST_KEY_SIZE = 576
"""Where values are of another size: DeepSeek's latent and rotary key."""
WARP_LANES = 32
CHUNK_MULTIPLE = 64
"""Decode work is cut at multiples of this many tokens: four warps times a tile of 16."""
MIN_CHUNK = 256
"""Fewer tokens than this are not worth a thread block."""
MIN_PART = 512
"""A tile of prefill rows is cut into parts of at least this many tokens; to merge one is taken to cost a 16th."""
MIN_SHARED = 512
"""Decoding sequences attend together to a prefix of at least this many tokens: as for a part, a merge costs a 16th."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What the attention kernels are specialised for."""

    scalar: torch.dtype
    cache: torch.dtype
    head_size: int
    block_size: int
    num_query_heads: int
    num_kv_heads: int
    has_softcap: bool = False
    has_sinks: bool = False
    has_slopes: bool = False
    has_value_tables: bool = False
    """Values lie in other blocks than the keys."""
    other_value_size: int | None = None
    """Where values are of another size than keys."""
    values_in_keys: bool = False
    """A value is the beginning of its key, and of another size (latent attention)."""

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.num_query_heads // self.num_kv_heads

    @property
    def value_size(self) -> int:
        """Elements of a value, and of an output."""
        return self.head_size if self.other_value_size is None else self.other_value_size

    def check(self) -> None:
        """CudaKernelError for a shape without kernels."""
        largest = HEAD_SIZES[-1] if self.other_value_size is None else MOST_KEY_SIZE
        for size in (self.head_size, self.value_size):
            if size % HEAD_MULTIPLE or not 0 < size <= largest:
                raise CudaKernelError(
                    f"the CUDA attention kernels do not support head size {size}",
                    hint=f"multiples of {HEAD_MULTIPLE} up to {largest} are supported",
                )
        if self.num_query_heads % self.num_kv_heads:
            raise CudaKernelError(
                f"{self.num_query_heads} query heads cannot share {self.num_kv_heads} KV heads evenly"
            )

    def defines(self) -> dict[str, str | int | torch.dtype]:
        """The compile-time constants of every attention kernel."""
        named: dict[str, str | int | torch.dtype] = {
            "scalar": self.scalar,
            "cache": self.cache,
            "head_size": self.head_size,
            "block_size": self.block_size,
            "group": self.group,
            "softcap": int(self.has_softcap),
            "sinks": int(self.has_sinks),
        }
        if self.other_value_size is not None:
            named["value_size"] = self.other_value_size
        optional = {
            "slopes": self.has_slopes,
            "value_tables": self.has_value_tables,
            "values_in_keys": self.values_in_keys,
        }
        return named | {name: 1 for name, wanted in optional.items() if wanted}


@dataclass(frozen=True, slots=True)
class DecodeLaunch:
    """The decode kernel of one shape on one device."""

    variant: KernelVariant
    threads: int
    blocks_per_item: int
    """Grid y: KV heads times the chunks that a large group of heads is cut into."""
    target_chunks: int
    """Work items that fill the device once."""
    shared_bytes: int

    def max_items(self, num_sequences: int, *, shares: bool = False) -> int:
        """An upper bound on the work items that the plan makes for so many sequences, whatever their lengths.

        shares: each may have one more, what is left of a prefix that it shares.
        """
        return num_sequences * (2 if shares else 1) + self.target_chunks


@dataclass(frozen=True, slots=True)
class PrefillLaunch:
    """The prefill kernel of one shape on one device."""

    variant: KernelVariant
    threads: int
    tile_rows: int
    """(token, head of the group) rows of one work item."""
    blocks_per_item: int
    shared_bytes: int
    box_rows: int = 0
    """Tokens of a page that the copy engine brings at once; 0: the kernel's threads copy (``AttentionParams``)."""
    target_items: int = 0
    """Work items that fill the device once; 0: the kernel takes whole tiles only."""
    part_floats: int = 0
    """What a block leaves of a part of a tile for the other parts' blocks."""

    def num_slots(self, num_floats: int) -> int:
        """Parts of tiles that so much scratch memory has room for."""
        return num_floats // (self.part_floats * self.blocks_per_item) if self.target_items else 0

    def max_items(self, num_sequences: int, num_tokens: int, group: int, num_slots: int = 0) -> int:
        """An upper bound on the tiles, and parts of tiles, of so many sequences with so many new tokens in all."""
        return num_sequences + num_tokens * group // self.tile_rows + num_slots


# How latent attention on tensor cores (attention/latent_mma.cu) is compiled and launched: pure arithmetic.


_ROWS = 64  # latent_mma.cu: ROWS
_TOKENS = 32  # latent_mma.cu: KV_TILE
_THREADS = 256


def uses_latent_kernel(shape: AttentionShape, properties: DeviceProperties) -> bool:
    """Whether latent attention runs on tensor cores: 16-bit rows, and shared memory for queries of 64 heads."""
    plain = not (shape.has_softcap or shape.has_sinks or shape.has_slopes)
    fits = latent_shared_bytes(shape) <= properties.shared_bytes_per_block
    sixteen_bit = shape.scalar in (torch.float16, torch.bfloat16) and shape.cache is shape.scalar
    is_latent = shape.values_in_keys and shape.num_kv_heads == 1 and shape.value_size % 32 == 0
    is_there = properties.has_tensor_kernels and families.LATENT_MMA not in properties.avoided
    return is_there and sixteen_bit and is_latent and plain and fits


def latent_shared_bytes(shape: AttentionShape) -> int:
    """latent_mma.cu: Place, which is queries, two tiles of tokens and their scores."""
    pitch = (shape.head_size * 2 // 16 | 1) * 16
    return pitch * (_ROWS + 2 * _TOKENS) + 4 * _ROWS * (_TOKENS + 4)


def _latent_variant(shape: AttentionShape, *, is_decode: bool = False) -> KernelVariant:
    optional = {"decode": 1} if is_decode else {}
    name = "decode_attention" if is_decode else "prefill_attention"
    return variant("attention/latent_mma.cu", name, **shape.defines(), warps=_THREADS // WARP_LANES, **optional)


def latent_prefill(shape: AttentionShape, properties: DeviceProperties) -> PrefillLaunch:
    """The kernel of prompts."""
    part_floats = _THREADS * (shape.value_size // 4 + 4)  # latent_mma.cu: PART_FLOATS
    launch = (_latent_variant(shape), _THREADS, _ROWS, 1, latent_shared_bytes(shape))
    return PrefillLaunch(*launch, target_items=properties.num_multiprocessors, part_floats=part_floats)


def latent_decode(shape: AttentionShape, properties: DeviceProperties) -> DecodeLaunch:
    """The kernel of decoding."""
    heads = min(shape.group, _ROWS)
    blocks_per_item = -(-shape.group // heads)
    buffer_bytes = latent_shared_bytes(shape)
    target_chunks = max(1, properties.num_multiprocessors // blocks_per_item)
    weight_bytes = 4 * heads * (target_chunks + 1 + 2)  # decode.cuh: merge_items
    chosen = _latent_variant(shape, is_decode=True)
    return DecodeLaunch(chosen, _THREADS, blocks_per_item, target_chunks, max(buffer_bytes, weight_bytes))


# How prefill_wgmma.cu is compiled and launched: products of warp groups, which compute capability 9.0 alone has.


_WARPS = 12  # two warp groups of consumers and the producer's
_CONSUMERS = 256
_TILE_ROWS = 128
_KV_TILE = 128
_STAGES = 2
_PANEL_ALIGNMENT = 1024  # hopper.cuh
_SMALLEST_BLOCK = 16


def uses_wgmma_kernel(shape: AttentionShape, properties: DeviceProperties) -> bool:
    """Whether the kernel has ``shape``: heads of 64 or 128, KV of 16 bits or fp8, blocks of a power of two."""
    block_size = shape.block_size
    return (
        properties.capability == (9, 0)
        and shape.scalar in (torch.float16, torch.bfloat16)
        and shape.cache in (shape.scalar, torch.float8_e4m3fn)
        and shape.other_value_size is None
        and shape.head_size in (64, 128)
        and block_size >= _SMALLEST_BLOCK
        and block_size & (block_size - 1) == 0
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
    is_widened = shape.cache.itemsize == 1
    ring_bytes = 2 * _KV_TILE * (_STAGES * row_bytes + is_widened * shape.head_size)
    barrier_bytes = (4 * _STAGES + 2 * is_widened) * 8
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
