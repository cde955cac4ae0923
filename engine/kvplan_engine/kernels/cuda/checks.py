"""What the CUDA kernels ask of their arguments beyond ``kernels.arguments``: neighbouring heads and aligned rows."""

from __future__ import annotations

import torch

from kvplan_engine.attention.layer_cache import LayerCache
from kvplan_engine.kernels.cuda.variants import CudaKernelError

VECTOR_BYTES = 16
"""What a thread loads and stores at once."""


def rows_are_aligned(tensor: torch.Tensor) -> bool:
    """Whether every row starts at a multiple of VECTOR_BYTES."""
    row_bytes = tensor.stride(0) * tensor.element_size()
    return tensor.data_ptr() % VECTOR_BYTES == 0 and (tensor.shape[0] == 1 or row_bytes % VECTOR_BYTES == 0)


def check_heads(name: str, tensor: torch.Tensor) -> None:
    """[T, heads, head_size] with the heads of a token side by side and aligned rows; ValueError where it is not so."""
    if tensor.shape[1] > 1 and tensor.stride(1) != tensor.shape[2]:
        raise ValueError(f"{name} has strides {tensor.stride()}; the heads of a token must lie side by side")
    if not rows_are_aligned(tensor):
        raise ValueError(f"{name}'s rows do not start at multiples of 16 bytes (strides {tensor.stride()})")


def check_rotary_table(cos_sin: torch.Tensor) -> None:
    """ValueError where the table does not start at a multiple of VECTOR_BYTES."""
    if cos_sin.data_ptr() % VECTOR_BYTES:
        raise ValueError("cos_sin does not start at a multiple of 16 bytes")


def check_scales(cache: LayerCache) -> None:
    """Where the pool holds int8: scales right behind a page's integers, and pages at multiples of VECTOR_BYTES.

    CudaKernelError for blocks too small for that, ValueError for scales elsewhere.
    """
    for pages, scales in ((cache.keys, cache.key_scales), (cache.values, cache.value_scales)):
        if scales is None:
            continue
        page_bytes = pages[0].numel() + scales[0].numel() * scales.itemsize
        if page_bytes % VECTOR_BYTES or cache.block_stride % VECTOR_BYTES:
            raise CudaKernelError(
                f"the CUDA kernels read int8 pages that begin at multiples of {VECTOR_BYTES} bytes, and one of "
                f"{cache.num_kv_heads} heads and {cache.block_size} tokens has {page_bytes:,}",
                hint="use block_size=16",
            )
        if scales.data_ptr() != pages.data_ptr() + pages[0].numel():
            raise ValueError(f"the scales of layer {cache.layer} do not lie behind its integers")
