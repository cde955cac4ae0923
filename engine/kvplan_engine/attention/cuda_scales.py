"""Where the CUDA kernels want the scales of a cache in integers."""

from __future__ import annotations

from kvplan_engine.attention.layer_cache import LayerCache
from kvplan_engine.kernels.cuda.checks import VECTOR_BYTES
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError


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
