"""One model on one kind of GPU: what fits, under vLLM's start-up or under kvplan's own engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial

from kvplan.catalog.gpus import GpuProfile
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import UsageError
from kvplan.estimate.kvplan.memory import EnginePrediction, EngineSettings, predict
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm
from kvplan.estimate.vllm.settings import VllmSettings, compute_capability
from kvplan.units import format_bytes


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """``--engine``: "kvplan", or "vllm" with a version."""

    name: str
    version: str = "latest"

    @classmethod
    def parse(cls, text: str) -> EngineChoice:
        name, _, version = text.strip().casefold().partition("@")
        if name not in ("kvplan", "vllm") or (version and name == "kvplan"):
            raise UsageError(
                f"--engine does not know '{text}'.", hint="kvplan, vllm, or vllm@VERSION such as vllm@0.19"
            )
        return cls(name, version or "latest")


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """What decides a deployment beside model and GPU; None leaves it to the engine's default."""

    engine: EngineChoice
    max_model_len: int
    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    device_memory_bytes: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    block_size: int | None = None
    gpu_memory_utilization: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    encoder_tokens: int | None = None
    language_model_only: bool = False


@dataclass(frozen=True, slots=True)
class Deployment:
    """One model on one kind of GPU. Bytes are per GPU; blocks, tokens and concurrency are the deployment's."""

    gpu: str
    engine: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    device_memory_bytes: int
    gpu_memory_utilization: float
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
    max_num_seqs: int
    max_num_batched_tokens: int
    fits: bool
    limit: str | None
    """What stands in the way when it does not fit: the missing bytes, or the largest length that fits."""

    def figures(self) -> dict[str, object]:
        """One key per field, for JSON and CSV."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True, slots=True)
class Placement:
    """A deployment and the defaults that were taken for it."""

    deployment: Deployment
    notes: tuple[str, ...] = ()


def place(spec: ModelSpec, gpu: GpuProfile, settings: PlacementSettings) -> Placement:
    """``spec`` on ``gpu`` under the chosen engine. UsageError where the ranks cannot divide it."""
    return _place_kvplan(spec, gpu, settings) if settings.engine.name == "kvplan" else _place_vllm(spec, gpu, settings)


def place_all(spec: ModelSpec, gpus: Sequence[GpuProfile], settings: PlacementSettings) -> list[Placement]:
    return list(map(partial(place, spec, settings=settings), gpus))


def _place_vllm(spec: ModelSpec, gpu: GpuProfile, settings: PlacementSettings) -> Placement:
    asked = VllmSettings(
        gpu_memory_utilization=settings.gpu_memory_utilization,
        max_model_len=settings.max_model_len,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_num_seqs,
        block_size=settings.block_size,
        tensor_parallel_size=settings.tensor_parallel_size,
        pipeline_parallel_size=settings.pipeline_parallel_size,
        dtype=settings.dtype,
        kv_cache_dtype=settings.kv_cache_dtype,
        device_memory_bytes=settings.device_memory_bytes,
        encoder_tokens=settings.encoder_tokens,
        language_model_only=settings.language_model_only,
    )
    found = predict_vllm(spec, gpu, asked, settings.engine.version)
    rank, resolved = found.rank, found.settings
    deployment = Deployment(
        gpu=gpu.id,
        engine=f"vllm@{found.version}",
        tensor_parallel_size=resolved.tensor_parallel_size,
        pipeline_parallel_size=resolved.pipeline_parallel_size,
        device_memory_bytes=resolved.device_memory_bytes,
        gpu_memory_utilization=resolved.gpu_memory_utilization,
        budget_bytes=rank.requested_bytes,
        weight_bytes=rank.weight_bytes,
        activation_peak_bytes=rank.activation.peak_bytes,
        overhead_bytes=rank.non_torch_bytes + rank.subtracted_graph_bytes,
        kv_pool_bytes=max(rank.available_kv_bytes, 0),
        num_blocks=found.num_blocks,
        block_size=found.block_size,
        kv_cache_tokens=found.kv_cache_tokens,
        max_concurrency=found.max_concurrency,
        max_model_len=resolved.max_model_len,
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        fits=found.fits,
        limit=_vllm_limit(found),
    )
    return Placement(deployment, resolved.notes)


def _vllm_limit(found: VllmPrediction) -> str | None:
    if found.fits:
        return None
    missing = format_bytes(found.missing_bytes)
    if found.outcome == "oom_weights":
        return f"the weights do not fit: {missing} short"
    if found.outcome == "rejected_ctx" and found.largest_max_model_len:
        return f"longest sequence that fits: {found.largest_max_model_len:,} tokens"
    return f"no room for one sequence: {missing} short"


def _place_kvplan(spec: ModelSpec, gpu: GpuProfile, settings: PlacementSettings) -> Placement:
    if settings.tensor_parallel_size * settings.pipeline_parallel_size != 1:
        raise UsageError("kvplan's engine runs on one device.", hint="use --engine vllm for more than one GPU")
    defaults = EngineSettings()
    total = settings.device_memory_bytes or gpu.memory_bytes
    asked = EngineSettings(
        gpu_memory_utilization=settings.gpu_memory_utilization or defaults.gpu_memory_utilization,
        max_num_seqs=settings.max_num_seqs or defaults.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens or defaults.max_num_batched_tokens,
        block_size=settings.block_size or defaults.block_size,
        max_model_len=settings.max_model_len,
        dtype=settings.dtype,
        kv_cache_dtype=settings.kv_cache_dtype,
        device="cpu" if gpu.is_cpu else "cuda",
        compute_capability=compute_capability(gpu),
    )
    found = predict(spec, asked, total)
    deployment = Deployment(
        gpu=gpu.id,
        engine="kvplan",
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        device_memory_bytes=total,
        gpu_memory_utilization=asked.gpu_memory_utilization,
        budget_bytes=found.budget_bytes,
        weight_bytes=found.weight_bytes,
        activation_peak_bytes=found.activation_bytes,
        overhead_bytes=found.overhead_bytes + found.graph_bytes,
        kv_pool_bytes=found.kv_pool_bytes,
        num_blocks=found.num_blocks,
        block_size=found.block_size,
        kv_cache_tokens=found.kv_cache_tokens,
        max_concurrency=found.max_concurrency,
        max_model_len=found.max_model_len,
        max_num_seqs=asked.max_num_seqs,
        max_num_batched_tokens=asked.max_num_batched_tokens,
        fits=found.outcome == "ok",
        limit=_kvplan_limit(found),
    )
    return Placement(deployment, _kvplan_notes(found))


def _kvplan_notes(found: EnginePrediction) -> tuple[str, ...]:
    """What is not known beforehand of a GPU."""
    if found.graphs is None:
        return ()
    reserve = (
        f"{format_bytes(found.overhead_bytes, digits=0)} of the overhead are the engine's reserve for the driver and "
        "libraries: not measured; the engine raises it to what it finds when it starts."
    )
    return found.graphs.sentence(), reserve


def _kvplan_limit(found: EnginePrediction) -> str | None:
    if found.outcome == "ok":
        return None
    if found.outcome == "rejected_ctx":
        return f"longest sequence that fits: {found.largest_context:,} tokens"
    return f"{format_bytes(found.fixed_bytes + found.block_bytes - found.budget_bytes)} short of one block"
