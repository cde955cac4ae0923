"""What ``kvplan estimate`` answers: one model, one context, and what fits on which GPU. Pure; printing is elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvplan.catalog.gpus import GpuProfile
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.dtypes import cache_dtype, element_bytes, serving_dtype
from kvplan.estimate.kv_cache import CacheSettings, KvCacheSize, size_sequence
from kvplan.estimate.kvplan_engine import EnginePrediction, EngineSettings, predict
from kvplan.units import format_bytes, format_tokens


@dataclass(frozen=True, slots=True)
class EstimateRequest:
    """What the user asks; None and "auto" mean: the model's or the engine's own default."""

    context_tokens: int | None = None
    gpus: tuple[GpuProfile, ...] = ()
    device_memory_bytes: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    engine: str = "kvplan"
    encoder_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Deployment:
    """One model on one kind of GPU. Bytes are per GPU; blocks, tokens and concurrency are the deployment's."""

    gpu: str
    engine: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    device_memory_bytes: int
    budget_bytes: int
    weight_bytes: int
    activation_peak_bytes: int
    overhead_bytes: int
    kv_pool_bytes: int
    num_blocks: int
    block_size: int
    kv_cache_tokens: int
    max_concurrency: float
    max_model_len: int
    fits: bool
    limit: str | None
    """What stands in the way when it does not fit, with the missing bytes or the largest length that fits."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The answer. ``assumptions``: everything that was taken because nobody said it, one sentence each."""

    spec: ModelSpec
    context_tokens: int
    dtype: str
    kv_dtype: str
    weight_bytes: int
    cache: KvCacheSize
    deployments: tuple[Deployment, ...]
    assumptions: tuple[str, ...] = field(default=())


def make_estimate(spec: ModelSpec, request: EstimateRequest) -> Estimate:
    """Size the model's weights and cache, and place it on every requested GPU."""
    notes = list(spec.assumptions)
    context_tokens = _context(spec, request, notes)
    dtype = serving_dtype(spec.dtype, request.dtype)
    kv_dtype = cache_dtype(dtype, request.kv_cache_dtype)
    if request.dtype == "auto" and dtype != spec.dtype:
        notes.append(
            f"The weights are published in {spec.dtype} and taken to be served in {dtype}: --dtype {spec.dtype}."
        )
    settings = CacheSettings(model_dtype=dtype, kv_dtype=kv_dtype, encoder_tokens=request.encoder_tokens)
    deployments = [_place(spec, request, gpu, dtype, context_tokens) for gpu in request.gpus]
    return Estimate(
        spec=spec,
        context_tokens=context_tokens,
        dtype=dtype,
        kv_dtype=kv_dtype,
        weight_bytes=spec.num_parameters * element_bytes(dtype),
        cache=size_sequence(spec, context_tokens, settings),
        deployments=tuple(deployments),
        assumptions=tuple(notes),
    )


def _context(spec: ModelSpec, request: EstimateRequest, notes: list[str]) -> int:
    longest = spec.max_position_embeddings
    if request.context_tokens is None:
        if longest is None:
            raise UsageError(f"The config of {spec.id} states no longest context.", hint="say how long: --ctx 32k")
        notes.append(f"No --ctx was given: {format_tokens(longest)}, the model's longest context.")
        return longest
    if longest is not None and request.context_tokens > longest:
        if spec.rope is None:
            raise KvplanError(
                f"{spec.id} has {longest:,} positions; a context of {request.context_tokens:,} is beyond them.",
                hint=f"use --ctx {longest} or less",
            )
        notes.append(
            f"A context of {request.context_tokens:,} is beyond the model's {longest:,} positions; engines refuse it "
            "unless the rotary positions are scaled."
        )
    return request.context_tokens


def _place(spec: ModelSpec, request: EstimateRequest, gpu: GpuProfile, dtype: str, context_tokens: int) -> Deployment:
    if request.tensor_parallel_size * request.pipeline_parallel_size != 1:
        raise UsageError("kvplan's engine runs on one device.", hint="use --engine vllm for more than one GPU")
    total = request.device_memory_bytes or gpu.memory_bytes
    settings = EngineSettings(
        gpu_memory_utilization=request.gpu_memory_utilization,
        max_num_seqs=request.max_num_seqs,
        max_num_batched_tokens=request.max_num_batched_tokens,
        block_size=request.block_size,
        max_model_len=context_tokens,
        dtype=dtype,
        kv_cache_dtype=request.kv_cache_dtype,
        device="cpu" if gpu.is_cpu else "cuda",
    )
    found = predict(spec, settings, total)
    return Deployment(
        gpu=gpu.id,
        engine="kvplan",
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        device_memory_bytes=total,
        budget_bytes=found.budget_bytes,
        weight_bytes=found.weight_bytes,
        activation_peak_bytes=found.activation_bytes,
        overhead_bytes=found.overhead_bytes,
        kv_pool_bytes=found.kv_pool_bytes,
        num_blocks=found.num_blocks,
        block_size=found.block_size,
        kv_cache_tokens=found.kv_cache_tokens,
        max_concurrency=found.max_concurrency,
        max_model_len=context_tokens,
        fits=found.outcome == "ok",
        limit=_limit(found),
    )


def _limit(found: EnginePrediction) -> str | None:
    if found.outcome == "ok":
        return None
    if found.outcome == "rejected_ctx":
        return f"longest sequence that fits: {found.largest_context:,} tokens"
    needed = found.weight_bytes + found.activation_bytes + found.overhead_bytes + found.block_bytes
    return f"{format_bytes(needed - found.budget_bytes)} short of one block"


def deployment_figures(deployments: Sequence[Deployment]) -> list[dict[str, object]]:
    """The deployments as rows for JSON and CSV, one key per field."""
    return [{name: getattr(row, name) for name in Deployment.__dataclass_fields__} for row in deployments]
