"""Experts whose weights have 4 bits beside activations in 16: MXFP4 (gpt-oss) and integers (AWQ, GPTQ and their like).

Fits are of experts in 16 bits, and such weights were taken to be read as fast. aiconfigurator-core 0.12.0 has their
kernels too. Its tables of whole layers of experts (routed by a power law of 1.01, at most 8 ranks, 32 experts and more)
were fitted by the formula of ``rank_step`` alone,

    seconds = per layer + read bytes / bandwidth + operations / flops + hidden vectors routed / routed bandwidth

for 16 bits and for 4 of the same engine and GPU, median errors 4 to 14 %:

                                          us a layer     TB/s        TFLOP/s      routed TB/s
    vLLM 0.24, H100    16 bits, Triton          37.7     3.55            857           0.64
                       MXFP4, triton_kernels    35.9     2.54            529           0.79
                       integers, Marlin         50.4     3.60            280           0.45
    vLLM 0.24, H200    16 bits, Triton          38.3     5.12            862           0.66
                       MXFP4, triton_kernels    35.6     2.69            516           0.89
                       integers, Marlin         45.2     4.05            266           0.45
    vLLM 0.19, H200    MXFP4                    64.3     2.57            577           0.26
    SGLang 0.5.14,     16 bits, Triton    26.4, 28.5     3.34, 4.72 284, 304     1.24, 1.52
    H100 and H200      integers, Marlin   34.4, 32.5     3.34, 4.13 298, 280           0.47
    vLLM 0.24, B200    16 bits, TRTLLM          16.3     8.30           1524           2.15
                       MXFP4, TRTLLM            19.1     4.13            679           0.61
                       integers, Marlin         43.4     4.86            281           0.49
    SGLang 0.5.14,     16 bits, TRTLLM          18.7     8.62           2089           1.45
    B200               MXFP4, TRTLLM in MXFP8   24.0     6.87           3148           1.25
    SGLang 0.5.10,     16 bits, Triton          56.9     1.93            133           0.86
    A100               integers, Marlin         45.0     2.06            136           0.36
    TensorRT-LLM 1.3,  16 bits, CUTLASS   33.7, 36.3     3.42, 4.89 857, 1076    0.50, 0.52
    H100 and H200      MXFP4              61.5, 65.3     2.89, 3.76 377, 347     0.89, 0.74

These count as differences and multiples of the same engine's 16 bits. Reading weights in 4 bits has an
end of its own, 2.6 TB/s for triton_kernels and 4.0 for Marlin on Hopper, since memory that is 1.43 times as fast (H200)
brings 1.06 and 1.12 times as much.

**Which kernel.** On Hopper vLLM takes Marlin for MXFP4 up to 0.11.0, where triton_kernels had to be installed by hand
(issue 26582 of vllm-project/vllm), and triton_kernels from 0.11.1 on (pull request 27370); SGLang takes triton_kernels
(python/sglang/srt/server_args.py), whose table is of weights that were widened beforehand and is not used, so vLLM's
stands in. Pull request 27523 has both of vLLM's: 128 tokens of eight sequences of gpt-oss-120b took 1.17 s with Marlin
and 1.58 s with triton_kernels, 89 us a layer more; by what stands above for Marlin and for 0.19 it is 71. Integers are
Marlin's in both engines. Launches around triton_kernels are as many as in 0.19 before 0.24, the next table. Marlin's
products on other GPUs of Ampere and Ada: ``widened_weights``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.work import ModelWork

_OF_MEMORY: Final = 1.06
"""Bandwidth that the formula above gives experts in 16 bits, of the data sheet's: a power law touches fewer of them."""


@dataclass(frozen=True, slots=True)
class _FewBitsKernel:
    """seconds: of a layer, more than in 16 bits. bytes_per_second: read at most. flops, routed: multiples."""

    seconds: float
    bytes_per_second: float
    flops: float
    routed: float


_OLDER_TRITON: Final = _FewBitsKernel(26.0e-6, 2.6e12, 0.67, 0.39)
_KERNELS: Final = {
    ("vllm", "9", "mxfp4"): _FewBitsKernel(-2.3e-6, 2.6e12, 0.61, 1.29),
    ("vllm", "9", "int4"): _FewBitsKernel(9.8e-6, 4.0e12, 0.32, 0.69),
    ("sglang", "9", "mxfp4"): _FewBitsKernel(8.3e-6, 2.6e12, 1.78, 0.61),
    ("sglang", "9", "int4"): _FewBitsKernel(6.0e-6, 4.0e12, 0.98, 0.34),
    ("trtllm", "9", "mxfp4"): _FewBitsKernel(28.4e-6, 3.3e12, 0.38, 1.59),
    ("vllm", "10", "mxfp4"): _FewBitsKernel(2.8e-6, 4.1e12, 0.45, 0.28),
    ("vllm", "10", "int4"): _FewBitsKernel(27.1e-6, 4.9e12, 0.18, 0.23),
    ("sglang", "10", "mxfp4"): _FewBitsKernel(5.3e-6, 6.9e12, 1.51, 0.86),
    ("sglang", "8", "int4"): _FewBitsKernel(-11.9e-6, 2.1e12, 1.02, 0.42),
    ("vllm", "8", "int4"): _FewBitsKernel(-11.9e-6, 2.1e12, 1.02, 0.42),
    ("vllm", "8", "mxfp4"): _FewBitsKernel(-11.9e-6, 2.1e12, 1.02, 0.42),
}
"""By engine, generation (the first part of the compute capability; of 8 the data centre's alone) and format."""
_DATA_CENTRE_AMPERE: Final = "8.0"


def with_few_bits(speed: DeviceSpeed, work: ModelWork, gpu: GpuProfile, engine: EngineChoice) -> DeviceSpeed:
    """Return ``speed``, a fit to the engine's experts in 16 bits, with those of ``work``'s 4-bit weights."""
    experts = speed.speed.experts
    kernel = _kernel(work, gpu, engine)
    is_fit = speed.engine == engine.name and speed.engine_version is not None and speed.dtype == "bfloat16"
    if experts is None or kernel is None or not is_fit:
        return speed
    share = min(kernel.bytes_per_second / (_OF_MEMORY * gpu.memory_bandwidth_bytes_per_second), 1.0)
    experts = replace(
        experts,
        layer_seconds=experts.layer_seconds + kernel.seconds,
        bandwidth=share * experts.bandwidth,
        flops=kernel.flops * experts.flops,
        routed_bandwidth=kernel.routed * experts.routed_bandwidth,
    )
    return replace(speed, speed=replace(speed.speed, experts=experts))


def _kernel(work: ModelWork, gpu: GpuProfile, engine: EngineChoice) -> _FewBitsKernel | None:
    capability = gpu.compute_capability or ""
    generation = capability.partition(".")[0]
    if not work.num_experts or not work.four_bits or (generation == "8" and capability != _DATA_CENTRE_AMPERE):
        return None
    if (engine.name, generation, work.four_bits) == ("vllm", "9", "mxfp4"):
        kernel = vllm_release(engine.version).hopper_mxfp4
        if kernel != "triton_kernels":
            return _KERNELS["vllm", "9", "int4"] if kernel == "marlin" else _OLDER_TRITON
    return _KERNELS.get((engine.name, generation, work.four_bits))
