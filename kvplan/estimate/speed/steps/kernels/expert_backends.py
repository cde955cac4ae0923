"""Which kernels a mixture's experts run on: those that were asked for, or those of the engine's release.

A fit is of the kernels that its tables have. On Hopper these are Triton's in vLLM and SGLang, CUTLASS's in
TensorRT-LLM; on Blackwell TensorRT-LLM's own in vLLM (from 0.24: ``blackwell_experts``) and SGLang (which runs them for
some models alone: ``sglang_experts``), and CUTLASS's in TensorRT-LLM, except that 8-bit floats in blocks were measured
with DeepGEMM's there.

TensorRT-LLM lets users choose (``moe_config: backend``). For blocks on Blackwell its default, CUTLASS, was of no use
until 1.3 made it TRTLLM (pull requests 14182 and 14282 of NVIDIA/TensorRT-LLM, May 2026). vLLM 0.24 and SGLang 0.5.14
run the same kernels; aiconfigurator-core 0.12.0 (b200_sxm/moe, routed by a power law of 1.01) has, in us:

    experts of one rank, divided                     1     16     64   4096  16384 tokens
    256 of 2048 over 8, hidden 7168    DeepGEMM     98    220    349    986   3245
                                       TRTLLM       36    103    177    748   2480
    256 of 2048 over 4                 DeepGEMM    108    276    478   1170   3678
                                       TRTLLM       39    163    307   1188   3948

Both are faster for few experts than for many: ``_TRTLLM_IN_BLOCKS`` has what 1 token takes less, and as geometric means
over shapes how many times as fast 16 and 64 tokens read weights beyond that and 12,288 more are multiplied. Those with
128 are 1536 over 4 (hidden 4096) and 768 over 1 and 2 (hidden 2048). B300 and GB200 have the same within a tenth. Of
whole experts the tables are not of one kind: TensorRT-LLM's have a rank of mean load, the others' the one with most.

CUTLASS's experts in 4-bit floats on Blackwell are several kernels, and quantize their inputs in a layout of their own.
One sequence of Llama-4-Scout, 48 layers with experts each, takes 12.84 ms a token with them and 7.60 with
TensorRT-LLM's (B200, vLLM, issue 1734 of flashinfer-ai/flashinfer): 0.109 ms more a layer. That is FlashInfer's;
SGLang's own, which ``--quantization modelopt`` gets, is of more kernels and was measured by nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.releases.sglang import sglang_release
from kvplan.catalog.releases.trtllm import trtllm_release
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import UsageError
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.kernels.blackwell_experts import blackwell_experts, has_both
from kvplan.estimate.speed.steps.kernels.sglang_experts import (
    by_triton_on_blackwell,
    runs_trtllm_on_blackwell,
    with_older_launches,
)
from kvplan.estimate.speed.steps.work import ModelWork

_BLOCKS: Final = "fp8-block"
_TRTLLM: Final = "flashinfer_trtllm"


@dataclass(frozen=True, slots=True)
class _Faster:
    """Differences in a layer's experts: seconds less at any size, and multiples of bytes and operations per second."""

    seconds: float
    bandwidth: float
    flops: float


_TRTLLM_IN_BLOCKS: Final = {128: _Faster(39e-6, 1.11, 0.88), 256: _Faster(66e-6, 1.58, 1.09)}
"""By the number of experts: TensorRT-LLM's kernels beside DeepGEMM's."""


_CUTLASS_IN_4_BITS: Final = 0.109e-3
"""Seconds more of a layer's experts than TensorRT-LLM's, on Blackwell."""


def check_backend(spec: ModelSpec, asked: str, engine: str) -> None:
    """UsageError where ``spec`` has no experts, or ``engine`` (of ``--engine``) no choice of kernels for them."""
    if asked == "auto":
        return
    if not spec.is_mixture:
        raise UsageError(f"{spec.served_id} has no experts.", hint="leave --moe-backend out")
    if engine == "kvplan":
        raise UsageError("kvplan's engine has no --moe-backend.", hint="leave it out, or use --engine vllm")


def with_backend(
    speed: DeviceSpeed, work: ModelWork, gpu: GpuProfile, engine: EngineChoice, asked: str = "auto"
) -> DeviceSpeed:
    """``speed`` with experts on the kernels ``asked`` for (of MOE_BACKENDS), "auto": on those of the engine's release.

    ``note`` and ``short_note`` say where those that were asked for were not measured; the fit's stand in for them.
    """
    if not work.num_experts:
        return speed
    if engine.name == "vllm" and has_both(speed, work, gpu):
        found = blackwell_experts(speed, work, gpu, vllm_release(engine.version), asked)
        return found if asked in ("auto", "triton", _TRTLLM) else _unmeasured(found, engine, gpu, asked)
    fitted = _fitted(speed, work, gpu, engine)
    wanted = _default(fitted, work, engine) if asked == "auto" else asked
    if engine.name == "sglang" and wanted == "triton" and fitted in ("triton", _TRTLLM):
        found = speed if fitted == "triton" else by_triton_on_blackwell(speed, work)
        return with_older_launches(found, work, engine.version)
    if fitted == "deep_gemm" and wanted == _TRTLLM and not work.layout.enable_expert_parallel:
        return _by_trtllm(speed, work)
    if fitted == _TRTLLM and work.speed_format == "fp4" and asked in ("cutlass", "flashinfer_cutlass"):
        return _by_cutlass(speed, asked)
    return speed if asked in ("auto", fitted) else _unmeasured(speed, engine, gpu, asked)


def by_backend(work: ModelWork, asked: str) -> ModelWork:
    """Return the work of a GPU that no kernels were measured on: Marlin widens experts and multiplies them in 16 bits.

    Of 4-bit floats vLLM says so itself: "Weight-only FP4 compression will be used leveraging the Marlin kernel"
    (vllm/model_executor/layers/quantization/utils/marlin_utils_fp4.py); of 8-bit ones marlin_utils_fp8.py alike.
    """
    if asked != "marlin" or not work.num_experts or work.compute_dtype not in ("fp4", "fp8"):
        return work
    return replace(work, compute_dtype="bfloat16", widens_weights=True)


def _fitted(speed: DeviceSpeed, work: ModelWork, gpu: GpuProfile, engine: EngineChoice) -> str | None:
    """The kernels that the fit is of; None where it is not of the engine's tables, or of several kernels."""
    if speed.engine != engine.name or speed.engine_version is None or speed.dtype != work.speed_format:
        return None
    generation = (gpu.compute_capability or "").partition(".")[0]
    if engine.name != "trtllm" and generation == "10":
        return _TRTLLM
    if not work.multiplies_weights_as_stored:
        return None
    if engine.name != "trtllm":
        return "triton" if generation in ("8", "9") and work.speed_format in ("bfloat16", _BLOCKS) else None
    return "deep_gemm" if generation == "10" and work.speed_format == _BLOCKS else "cutlass"


def _default(fitted: str | None, work: ModelWork, engine: EngineChoice) -> str | None:
    if engine.name == "sglang" and fitted == _TRTLLM:
        return fitted if runs_trtllm_on_blackwell(work, sglang_release(engine.version)) else "triton"
    is_blocks = engine.name == "trtllm" and fitted == "deep_gemm"
    return _TRTLLM if is_blocks and trtllm_release(engine.version).trtllm_experts_by_default else fitted


def _by_trtllm(speed: DeviceSpeed, work: ModelWork) -> DeviceSpeed:
    """Return the speed by the measured shape with the nearest number of experts."""
    experts = speed.speed.experts
    if experts is None:
        return speed
    faster = _TRTLLM_IN_BLOCKS[min(_TRTLLM_IN_BLOCKS, key=lambda number: abs(number - work.num_experts))]
    experts = replace(
        experts,
        layer_seconds=experts.layer_seconds - faster.seconds,
        bandwidth=faster.bandwidth * experts.bandwidth,
        flops=faster.flops * experts.flops,
    )
    return replace(speed, speed=replace(speed.speed, experts=experts))


def _by_cutlass(speed: DeviceSpeed, asked: str) -> DeviceSpeed:
    experts = speed.speed.experts
    if experts is None:
        return speed
    experts = replace(experts, layer_seconds=experts.layer_seconds + _CUTLASS_IN_4_BITS)
    found = replace(speed, speed=replace(speed.speed, experts=experts))
    more = f"{1e3 * _CUTLASS_IN_4_BITS:.3f} ms"
    return found.with_gap(f"experts by {asked} take {more} a layer more, as one sequence did alone")


def _unmeasured(speed: DeviceSpeed, engine: EngineChoice, gpu: GpuProfile, asked: str) -> DeviceSpeed:
    return speed.with_gap(
        f"experts by {asked} were not measured in {engine.name} on {gpu.id} and count as those that were"
    )
