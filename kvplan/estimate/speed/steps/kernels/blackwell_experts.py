"""vLLM's experts on B200 in the formats and releases that no fit is of.

Its dense products in 8-bit floats were measured launch by launch there, so that fits are of 16 bits and of 4 alone; the
experts' kernels were not, and releases before 0.24 ran Triton's where 0.24 runs TensorRT-LLM's. aiconfigurator-core
0.12.0 has both (b200_sxm/moe/vllm: 0.19.0, 0.22.0 and 0.24.0, routed by a power law of 1.01), in us:

    128 experts of 1536 over 4 ranks, hidden 4096    16     64    256   1024   4096  16384 tokens
    16 bits, 0.24.0                                 101    172    224    263    471   1537
    16 bits, 0.22.0                                 125    238    249    402    807   2542
    8-bit floats, 0.24.0                             61    101    138    169    313    991
    8-bit floats, 0.22.0                             83    147    161    273    588   1918
    in blocks, 0.24.0                                73    114    205    244    569   1985
    in blocks, 0.22.0                                92    148    193    413   1056   3560

Factors are geometric means over both releases and two shapes (this one, and 128 of 768 whole with hidden 2048): of the
time that 12,288 more tokens take, and, for bandwidth, of the time of 16 and 64 tokens, which read weights alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.work import ModelWork

_COMPUTE_CAPABILITY: Final = "10.0"


@dataclass(frozen=True, slots=True)
class _Reached:
    """Bytes and operations per second of experts, as multiples of those in 16 bits of 0.24."""

    bandwidth: float
    flops: float


_TRTLLM: Final = {"bfloat16": _Reached(1.0, 1.0), "fp8": _Reached(0.84, 1.61), "fp8-block": _Reached(0.72, 0.68)}
_TRITON: Final = {"bfloat16": _Reached(0.81, 0.72), "fp8": _Reached(0.60, 0.83), "fp8-block": _Reached(0.57, 0.43)}


_BACKENDS: Final = {"triton": _TRITON, "flashinfer_trtllm": _TRTLLM}


def has_both(speed: DeviceSpeed, work: ModelWork, gpu: GpuProfile) -> bool:
    """Whether the tables of ``gpu`` have Triton's experts and TensorRT-LLM's of the model's format."""
    is_told = speed.engine == "vllm" and speed.engine_version is not None and speed.dtype == "bfloat16"
    is_there = gpu.compute_capability == _COMPUTE_CAPABILITY and work.multiplies_weights_as_stored
    return is_told and is_there and work.speed_format in _TRTLLM


def blackwell_experts(
    speed: DeviceSpeed, work: ModelWork, gpu: GpuProfile, release: VllmRelease, backend: str = "auto"
) -> DeviceSpeed:
    """``speed`` with experts as fast as their kernels in the model's format: those of ``backend``, or of ``release``.

    Of a fit in 16 bits to vLLM's tables of the GPU itself; others are left as they are.
    """
    experts = speed.speed.experts
    if backend == "auto":
        backend = release.blackwell_experts
    if experts is None or backend not in _BACKENDS or not work.num_experts or not has_both(speed, work, gpu):
        return speed
    reached = _BACKENDS[backend][work.speed_format]
    # The clock multiplies by what data sheets say of the format, of which the factors here know more.
    by_data_sheet = gpu.flops(work.compute_dtype) / gpu.flops(speed.dtype)
    experts = replace(
        experts, bandwidth=reached.bandwidth * experts.bandwidth, flops=reached.flops / by_data_sheet * experts.flops
    )
    return replace(speed, speed=replace(speed.speed, experts=experts))
