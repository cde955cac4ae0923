"""How latent attention on tensor cores (attention/latent_mma.cu) is compiled and launched: pure arithmetic."""

from __future__ import annotations

import torch

from kvplan_engine.kernels.cuda.attention.shape import WARP_LANES, AttentionShape, DecodeLaunch, PrefillLaunch
from kvplan_engine.kernels.cuda.launching.families import LATENT_MMA
from kvplan_engine.kernels.cuda.launching.runtime import DeviceProperties
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant, variant

_ROWS = 64  # latent_mma.cu: ROWS
_TOKENS = 32  # latent_mma.cu: KV_TILE
_THREADS = 256


def uses_latent_kernel(shape: AttentionShape, properties: DeviceProperties) -> bool:
    """Whether latent attention runs on tensor cores: 16-bit rows, and shared memory for queries of 64 heads."""
    plain = not (shape.has_softcap or shape.has_sinks or shape.has_slopes)
    fits = latent_shared_bytes(shape) <= properties.shared_bytes_per_block
    sixteen_bit = shape.scalar in (torch.float16, torch.bfloat16) and shape.cache is shape.scalar
    is_latent = shape.values_in_keys and shape.num_kv_heads == 1 and shape.value_size % 32 == 0
    is_there = properties.has_tensor_kernels and LATENT_MMA not in properties.avoided
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
