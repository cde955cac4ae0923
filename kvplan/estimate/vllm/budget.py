"""The rest of vLLM's budget: memory that torch does not see, and CUDA graphs.

These depend on driver, CUDA and NCCL versions and cannot be derived; the constants are medians of what published logs
print, per generation of vLLM, not per model. They are small beside weights and KV cache on large GPUs.
"""

from __future__ import annotations

import math

from kvplan.catalog.devices.device_support import compute_capability
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.settings import FilledSettings
from kvplan.units import GIB, MIB

_UNIFIED_EXTRA_GIB = 1.0
"""On a GPU that shares its host's memory, free memory also shrinks by what the engine's processes take of the host."""
_HOPPER = 9
_GRAPH_SIZES_AT_512 = 51
_LARGEST_GRAPH, _LARGEST_GRAPH_ON_BLACKWELL = 512, 1024
_BLACKWELL = 10
_GRAPH_FIXED_GIB = 0.40
_GRAPH_LAYER_GIB = 0.0125
"""Estimates that vLLM 0.19 logged for 35 models on H100 with all 51 sizes: 0.5 to 1.8 GiB, by number of layers."""
_GRAPH_SHARE_ELSEWHERE = 0.63
"""On other GPUs: median of ten start-ups from seven sources on A100, A40, A6000, L4 and GB10 (0.4 to 0.8)."""


def non_torch_bytes(
    gpu: GpuProfile, settings: FilledSettings, release: VllmRelease, *, exchanges_tokens: bool = False
) -> int:
    """CUDA context growth, cuBLAS handles, JIT-compiled modules, and with several GPUs the communicators' buffers.

    From 0.33 on the handles are made before the budget begins. What share of the constants they were is not known, so
    that it stays in them: a few tens of MiB at most.

    ``exchanges_tokens``: data-parallel groups send tokens to each other's experts.
    """
    if not release.counts_non_torch:
        return 0
    total = release.non_torch_gib_on_hopper if _is_hopper_or_later(gpu) else release.non_torch_gib
    if settings.tensor_parallel_size > 1 or exchanges_tokens:
        total += _parallel_extra_gib(gpu, settings.tensor_parallel_size, release)
    if gpu.unified_memory:
        total += _UNIFIED_EXTRA_GIB
    return int(total * GIB)


def _parallel_extra_gib(gpu: GpuProfile, tensor_parallel_size: int, release: VllmRelease) -> float:
    has_fabric = gpu.joins_by_nvlink(tensor_parallel_size) and _is_hopper_or_later(gpu)
    if has_fabric and release.nvlink_parallel_gib is not None:
        return release.nvlink_parallel_gib
    return release.neighbour_gib * min(tensor_parallel_size - 1, 2) + release.parallel_gib


def _is_hopper_or_later(gpu: GpuProfile) -> bool:
    return compute_capability(gpu)[0] >= _HOPPER


def capture_sizes(max_num_seqs: int, largest: int = _LARGEST_GRAPH) -> int:
    """How many batch sizes are captured: 1, 2, 4, every 8 to 256, every 16 to the largest, at most 2 max_num_seqs."""
    largest = min(2 * max_num_seqs, largest)
    small = sum(1 for size in (1, 2, 4) if size <= largest)
    middle = min(largest, 256) // 8
    return small + middle + max(largest - 256, 0) // 16


def cudagraph_bytes(num_layers: int, gpu: GpuProfile, settings: FilledSettings, release: VllmRelease) -> int:
    """Memory of the captured graphs (0 with enforce_eager and on CPUs): a share for each size, larger with every layer.

    Those of the second model runner are taken for as large: no published start-up has them.
    """
    if settings.enforce_eager or gpu.is_cpu:
        return 0
    is_huge = release.huge_graph_sizes and compute_capability(gpu)[0] == _BLACKWELL
    largest = _LARGEST_GRAPH_ON_BLACKWELL if is_huge else _LARGEST_GRAPH
    share = capture_sizes(settings.max_num_seqs, largest) / _GRAPH_SIZES_AT_512
    if compute_capability(gpu)[0] != _HOPPER:
        share *= _GRAPH_SHARE_ELSEWHERE
    return max(int(share * (_GRAPH_FIXED_GIB + _GRAPH_LAYER_GIB * num_layers) * GIB), MIB)


def requested_bytes(settings: FilledSettings) -> int:
    """What the instance may use of one GPU."""
    return math.ceil(settings.device_memory_bytes * settings.gpu_memory_utilization)
