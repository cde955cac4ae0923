"""A result's facts as a deployment that can be simulated: model, device, engine, limits, and the work of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Final

from kvplan.calibrate.results.served import ServedDeployment, demand
from kvplan.calibrate.trials import DeviceIdentity
from kvplan.catalog.devices.device_support import dtype_on
from kvplan.catalog.devices.gpus import GpuProfile, find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.dtypes import serving_dtype
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.simulation.interface import BatchLimits
from kvplan.estimate.speed.steps.rank_step import KernelSpeed
from kvplan.estimate.speed.steps.work import ModelWork, kv_read_bytes, model_work
from kvplan.estimate.vllm.prediction import VllmPrediction, cache_settings, predict_vllm
from kvplan.machine.host import cpu_name, usable_cores
from kvplan.settings import ServingSettings
from kvplan.sweeps.engine_names import OTHER_ENGINES, OWN_ENGINE
from kvplan.workload.requests import RequestSpec

_ENGINES: Final = tuple(name for name in (OWN_ENGINE, *OTHER_ENGINES) if name != "openai")


@dataclass(frozen=True, slots=True)
class Deployed:
    """What served a result. kv_bytes_per_token: read by one rank, of sequences as long as the result's.

    engine_version: ``unknown`` where nobody said it. kernels: what is believed of the device, None before that is
    known.
    """

    spec: ModelSpec
    gpu: GpuProfile
    device: DeviceIdentity
    engine: str
    engine_version: str
    limits: BatchLimits
    work: ModelWork
    kv_bytes_per_token: float
    kernels: KernelSpeed | None = None


def deployed(served: ServedDeployment, source: str, requests: Sequence[RequestSpec]) -> Deployed:
    """The deployment of ``requests``. UsageError for what neither the file nor an option says.

    Limits that nobody said are the engine's defaults, by vLLM's rules; the pool is what was said, on a GPU what is
    predicted for it, and on a CPU large enough.
    """
    spec = _model(served, source)
    hint = "--gpu, such as --gpu h100-sxm, or --gpu cpu for this machine's processor"
    gpu = find_gpu(demand(served.gpu, "what it was measured on", hint, source))
    engine = demand(served.engine, "which engine served it", "--engine, such as --engine vllm", source)
    if engine not in _ENGINES:
        raise UsageError(f"Unknown engine '{engine}' of {source}.", hint="one of " + ", ".join(_ENGINES))
    found = _memory(spec, gpu, _settings(served), _version(engine, served.engine_version))
    settings = found.settings.serving
    layout = ParallelLayout.of(settings)
    work = model_work(spec, found.rank.weight_bytes, settings.dtype, layout)
    context = max(round(fmean(each.num_prompt_tokens + each.num_output_tokens / 2 for each in requests)), 1)
    return Deployed(
        spec=spec,
        gpu=gpu,
        device=_identity(served, gpu, work.speed_format),
        engine=engine,
        engine_version=served.engine_version or "unknown",
        limits=_limits(served, gpu, found, requests),
        work=work,
        kv_bytes_per_token=kv_read_bytes(spec, context, cache_settings(spec, settings)) / context,
    )


def _model(served: ServedDeployment, source: str) -> ModelSpec:
    name = demand(served.model, "which model was served", "--model", source)
    try:
        return resolve_model(name)
    except KvplanError as error:
        raise KvplanError(f"{source} is of a model '{name}', which is not known here.", hint="add --model") from error


def _version(engine: str, version: str | None) -> str:
    """vLLM's, by whose rules memory and defaults are predicted; of other engines the newest's."""
    return version if engine == "vllm" and version else "latest"


def _settings(served: ServedDeployment) -> ServingSettings:
    return ServingSettings(
        dtype=served.dtype or "auto",
        kv_cache_dtype=served.kv_cache_dtype or "auto",
        tensor_parallel_size=served.tensor_parallel_size or 1,
        gpu_memory_utilization=served.gpu_memory_utilization,
        max_num_seqs=served.max_num_seqs,
        max_num_batched_tokens=served.max_num_batched_tokens,
        max_model_len=served.max_model_len,
        block_size=served.block_size,
    )


@cache
def _memory(spec: ModelSpec, gpu: GpuProfile, settings: ServingSettings, version: str) -> VllmPrediction:
    from dataclasses import replace

    asked = settings.dtype
    dtype = dtype_on(gpu, spec, serving_dtype(spec.dtype, asked), asked=asked, version=version)
    return predict_vllm(spec, gpu, replace(settings, dtype=dtype), version)


def _identity(served: ServedDeployment, gpu: GpuProfile, dtype: str) -> DeviceIdentity:
    if not gpu.is_cpu:
        return DeviceIdentity("cuda", gpu.name, None, dtype)
    return DeviceIdentity("cpu", served.cpu_name or cpu_name(), served.num_cores or usable_cores(), dtype)


def _limits(
    served: ServedDeployment, gpu: GpuProfile, found: VllmPrediction, requests: Sequence[RequestSpec]
) -> BatchLimits:
    settings, block = found.settings.serving, found.block_size
    needed = [-(-(each.num_prompt_tokens + each.num_output_tokens + 1) // block) for each in requests]
    known = served.num_blocks
    if known is None:
        known = sum(needed) if gpu.is_cpu else found.kv_cache_tokens // block
    return BatchLimits(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        block_size=block,
        num_blocks=max(known, *needed),
    )
