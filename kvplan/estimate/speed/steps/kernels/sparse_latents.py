"""Latent attention whose indexer chooses the tokens to attend to (DeepSeek-V3.2, GLM-5), which no fit is of.

aiconfigurator-core 0.12.0 has a layer's whole attention with the choice and without it (sparse_attention and mla, vLLM
0.24, products in 8-bit floats, K and V in 16 bits), in us of an H200 with 16 heads on a rank:

    prompts x tokens          64 x 128    32 x 512    16 x 1024    4 x 2048    1 x 8192    1 x 32768
    chosen tokens                3,268       6,792        7,690       4,909       6,750       35,356
    all                          1,275       2,552        2,338       1,281       1,551       10,128

Prompts take longer because FlashMLA's kernel has 64 heads on Hopper and 128 on Blackwell, to which those of a rank are
padded (flashmla_sparse.py of vLLM): 32 and 64 heads on an H200 take as long as 16 do. Differences were fitted by

    per layer + per token x tokens + per pair x chosen pairs + per seen pair x pairs

over 36 prompts and 160 decode steps for each number of heads, which meets the table within 2 to 3 % in prompts and 4 to
6 % in decode steps (medians). Where all tokens are chosen, 2,048 at most, the dense kernel's own cost of a pair counts
beside it (9 ps of an H200 in prompts), and the indexer's below: 16,384 operations of a pair, at 0.9 PFLOP/s.

SGLang 0.5.14 has no table without the choice. Its prompts of up to 2,048 tokens are read densely on Hopper
(sglang_dsa_dense_mha_fa3: 0.100 us a token and layer, 4 x 2048), longer ones by the same kernel: 0.72 us at 8,192 where
vLLM's table has 0.82. Decode steps are as long as vLLM's without the choice, 66 to 95 us of one sequence.

K and V in 8 bits, which take 0.5 us more of a token on Hopper where a rank has fewer than 32 heads, count as in 16.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.rank_step import SparseSpeed
from kvplan.estimate.speed.steps.work import ModelWork


@dataclass(frozen=True, slots=True)
class _Kernel:
    """``speed``: of a rank with ``heads`` heads, which fewer are padded to."""

    heads: int
    speed: SparseSpeed


_VLLM_HOPPER: Final = SparseSpeed(91e-6, 0.225e-6, 194e-12, 49e-12, 17e-12)
_VLLM_BLACKWELL: Final = SparseSpeed(118e-6, 0.32e-6, 150e-12, 32e-12, 10e-12)
_KERNELS: Final = {
    ("vllm", "9"): _Kernel(64, _VLLM_HOPPER),
    ("vllm", "10"): _Kernel(128, _VLLM_BLACKWELL),
    ("sglang", "9"): _Kernel(
        64, replace(_VLLM_HOPPER, layer_seconds=0.0, token_seconds=0.125e-6, dense_context=1024.0)
    ),
}
"""By engine and the first part of the compute capability."""


def with_choice(speed: DeviceSpeed, work: ModelWork, gpu: GpuProfile) -> DeviceSpeed:
    """``speed`` with what choosing tokens costs, of a model that does and a fit to an engine's tables."""
    kernel = _KERNELS.get((speed.engine, (gpu.compute_capability or "").partition(".")[0]))
    if kernel is None or not work.num_sparse_layers or speed.speed.latent is None or speed.engine_version is None:
        return speed
    heads = work.num_heads / work.layout.tensor_parallel_size
    padded = max(heads / kernel.heads, 1.0)
    sparse = replace(kernel.speed, pair_seconds=padded * kernel.speed.pair_seconds)
    return replace(speed, speed=replace(speed.speed, sparse=sparse))
