"""Tokens of a block where nothing is said.

16, and for latent attention what the kernels take that vLLM chooses on a GPU. Read in the released sources from 0.8.0
to 0.33.0: vllm/platforms/cuda.py (check_and_update_config up to 0.17; _get_backend_priorities), from 0.18 on
vllm/platforms/interface.py (update_block_size_for_backend), which asks the first kernel that can run for 16 or else the
least that it takes (get_supported_kernel_block_sizes, vllm/v1/attention/backends/mla):

    releases            Hopper                       Blackwell's 10.x                                 other GPUs
    0.8.0 to 0.10.0     64, FlashMLA                 16, Triton                                       16, Triton
    0.10.1 to 0.14      64                           128, CUTLASS                                     16
    0.15 to 0.17        64                           64, FlashInfer; 128 where its heads do not fit   16
    from 0.18 on        16, FlashAttention;          32, FlashInfer; 128 where its heads do not fit   16
                        64 in 8 bits, FlashMLA

On a CPU 128 (vllm/platforms/cpu.py, update_block_size_for_backend), and 16 for latent attention without AMX.

Sparse latent attention has blocks of 64 tokens, those of its index. (From 0.18 to 0.30 vLLM asks the first layer's
kernel alone, and what that comes to on Blackwell was not settled; 64 is taken.) On AMD's GPUs both take 16 from 0.28
on. Where an index key stands for several tokens, a block has those of 32 keys.
"""

from __future__ import annotations

from typing import Final

from kvplan.catalog.devices.device_support import compute_capability
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.catalog.spec import LatentAttention, ModelSpec
from kvplan.estimate.vllm.groups import POOLED_KEYS
from kvplan.estimate.vllm.pages import COMPRESSED_BLOCK

CPU_BLOCK: Final = 128
_USUAL: Final = 16
_SPARSE: Final = 64
_FLASH_MLA: Final = 64
_CUTLASS: Final = 128


def default_block_size(spec: ModelSpec, gpu: GpuProfile, release: VllmRelease, kv_cache_dtype: str) -> int:
    """``--block-size`` that vLLM takes for a cache in ``kv_cache_dtype``."""
    if spec.is_compressed:
        return COMPRESSED_BLOCK
    if gpu.is_cpu and release.v1 and not spec.is_latent:
        return CPU_BLOCK
    if not (spec.is_latent and release.v1 and release.latent_cache):
        return _USUAL
    if spec.index_pool > 1:
        return spec.index_pool * POOLED_KEYS
    major = compute_capability(gpu)[0]
    if spec.has_indexer:
        return _USUAL if major == 0 and release.small_sparse_blocks_on_amd else _SPARSE
    if major == 9:
        return _USUAL if release.latent_blocks_by_kernel and not kv_cache_dtype.startswith("fp8") else _FLASH_MLA
    if major == 10:
        return _on_blackwell(spec, release)
    return _USUAL


def _on_blackwell(spec: ModelSpec, release: VllmRelease) -> int:
    if release.latent_kernel_on_10 == "triton":
        return _USUAL
    heads = {layer.mixer.qk_nope_head_size for layer in spec.layers if isinstance(layer.mixer, LatentAttention)}
    if release.latent_kernel_on_10 == "cutlass" or not heads.issubset(release.latent_flashinfer_heads):
        return _CUTLASS
    return 32 if release.latent_blocks_by_kernel else 64
