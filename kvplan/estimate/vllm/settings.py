"""vLLM's settings as a user gives them, and as the engine resolves them on a given GPU and release."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kvplan.catalog.engines import VllmRelease
from kvplan.catalog.gpus import GpuProfile
from kvplan.catalog.spec import LatentAttention, ModelSpec
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.dtypes import cache_dtype, serving_dtype
from kvplan.units import GIB

_LARGE_GPU_BYTES = 70 * GIB
_HUGE_GPU_BYTES = 160 * GIB
_V0_CHUNKS_ABOVE_TOKENS = 32768
_V0_DEFAULT_CONTEXT_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """What the user says; None and "auto" leave it to the release. Names are vLLM's.

    ``device_memory_bytes`` replaces the profile's total; ``usage`` is "server" (vllm serve) or "offline" (LLM class);
    ``has_flashinfer``: FlashInfer is installed, which some releases then sample with.
    ``language_model_only``: towers are neither loaded nor profiled (--language-model-only, or every limit of
    --limit-mm-per-prompt 0).
    """

    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    block_size: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    enforce_eager: bool = False
    num_speculative_tokens: int = 0
    device_memory_bytes: int | None = None
    usage: Literal["server", "offline"] = "server"
    enable_prefix_caching: bool | None = None
    estimate_cudagraphs: bool | None = None
    encoder_tokens: int | None = None
    has_flashinfer: bool = False
    language_model_only: bool = False


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """Every setting with its value, and a sentence for each default that was taken."""

    gpu_memory_utilization: float
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    block_size: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    decode_context_parallel_size: int
    dtype: str
    kv_cache_dtype: str
    quantization: str | None
    enforce_eager: bool
    num_speculative_tokens: int
    device_memory_bytes: int
    states_per_request: int
    subtract_graphs: bool
    encoder_tokens: int | None
    samples_with_flashinfer: bool
    language_model_only: bool
    notes: tuple[str, ...] = field(default=())


def compute_capability(gpu: GpuProfile) -> tuple[int, int]:
    """(9, 0) for a profile that says "9.0"; (0, 0) for devices that are not NVIDIA's."""
    major, _, minor = gpu.compute_capability.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


def runs_flashinfer(gpu: GpuProfile) -> bool:
    """Whether vLLM runs FlashInfer there (vllm/v1/attention/backends/flashinfer.py, supports_compute_capability)."""
    return (8, 0) <= compute_capability(gpu) <= (12, 1)


def resolve_settings(
    spec: ModelSpec, gpu: GpuProfile, settings: VllmSettings, release: VllmRelease
) -> ResolvedSettings:
    """The settings vLLM would run with. KvplanError when the config does not say how long a sequence may be."""
    _check(settings)
    notes: list[str] = []
    max_model_len = settings.max_model_len or spec.max_position_embeddings
    if max_model_len is None:
        raise KvplanError(f"The config of {spec.id} states no longest sequence.", hint="give one: --max-model-len 4096")
    if settings.max_model_len is None:
        notes.append(f"max_model_len {max_model_len}: the model's longest.")
    total = settings.device_memory_bytes or gpu.memory_bytes
    utilization = settings.gpu_memory_utilization
    if utilization is None:
        utilization = release.gpu_memory_utilization
        notes.append(f"gpu_memory_utilization {utilization}: vLLM {release.text}'s default.")
    tokens, rows = _batch_limits(gpu, total, settings, release, max_model_len, notes)
    dtype = serving_dtype(spec.dtype, settings.dtype)
    prefixes = settings.enable_prefix_caching
    keeps_prefixes = release.caches_hybrid_prefixes if prefixes is None else prefixes
    subtracts = release.graphs_in_budget if settings.estimate_cudagraphs is None else settings.estimate_cudagraphs
    return ResolvedSettings(
        gpu_memory_utilization=utilization,
        max_model_len=max_model_len,
        max_num_batched_tokens=tokens,
        max_num_seqs=rows,
        block_size=settings.block_size or default_block_size(spec, release),
        tensor_parallel_size=settings.tensor_parallel_size,
        pipeline_parallel_size=settings.pipeline_parallel_size,
        decode_context_parallel_size=settings.decode_context_parallel_size,
        dtype=dtype,
        kv_cache_dtype=cache_dtype(dtype, settings.kv_cache_dtype),
        quantization=settings.quantization,
        enforce_eager=settings.enforce_eager,
        num_speculative_tokens=settings.num_speculative_tokens,
        device_memory_bytes=total,
        states_per_request=(2 if keeps_prefixes else 1) + settings.num_speculative_tokens,
        subtract_graphs=subtracts and not settings.enforce_eager,
        encoder_tokens=settings.encoder_tokens,
        samples_with_flashinfer=_samples_with_flashinfer(gpu, settings, release),
        language_model_only=settings.language_model_only,
        notes=tuple(notes),
    )


def _samples_with_flashinfer(gpu: GpuProfile, settings: VllmSettings, release: VllmRelease) -> bool:
    is_there = settings.has_flashinfer or release.requires_flashinfer
    return is_there and release.samples_with_flashinfer and runs_flashinfer(gpu)


def _check(settings: VllmSettings) -> None:
    utilization = settings.gpu_memory_utilization
    if utilization is not None and not 0 < utilization <= 1:
        raise UsageError(f"gpu_memory_utilization {utilization} is not a share of the memory.", hint="give 0.1 to 1.0")
    counts = ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size", "device_memory_bytes")
    for name in (*counts, "tensor_parallel_size", "pipeline_parallel_size", "decode_context_parallel_size"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise UsageError(f"{name} {value} is not positive.", hint=f"give a positive {name}")


def default_block_size(spec: ModelSpec, release: VllmRelease) -> int:
    """16 tokens; 64 for latent attention, whose kernels read the cache in rows of 64 (FlashMLA)."""
    has_latent = any(isinstance(layer.mixer, LatentAttention) for layer in spec.layers)
    return 64 if has_latent and release.v1 and release.latent_cache else 16


def _batch_limits(
    gpu: GpuProfile,
    total_bytes: int,
    settings: VllmSettings,
    release: VllmRelease,
    max_model_len: int,
    notes: list[str],
) -> tuple[int, int]:
    default_tokens, default_rows = _batch_defaults(gpu, total_bytes, settings.usage, release, max_model_len)
    rows = settings.max_num_seqs or default_rows
    tokens = settings.max_num_batched_tokens
    if tokens is None:
        tokens = min(default_tokens, rows * max_model_len) if release.v1 else default_tokens
        notes.append(f"max_num_batched_tokens {tokens}: the default on this GPU.")
    if settings.max_num_seqs is None:
        rows = min(rows, tokens)
        notes.append(f"max_num_seqs {rows}: the default on this GPU.")
    return tokens, rows


def _batch_defaults(
    gpu: GpuProfile, total_bytes: int, usage: str, release: VllmRelease, max_model_len: int
) -> tuple[int, int]:
    """(tokens, sequences) per step where the user gives none (vllm/engine/arg_utils.py, get_batch_defaults).

    The first engine prefilled whole prompts, so one step had to hold the longest of them, unless prompts were so long
    that chunking was on by itself.
    """
    if not release.v1:
        chunks = max_model_len > _V0_CHUNKS_ABOVE_TOKENS and release.version >= (0, 5, 0)
        if chunks:
            return (_V0_DEFAULT_CONTEXT_TOKENS if release.version >= (0, 6, 2) else 512), 256
        return max(max_model_len, _V0_DEFAULT_CONTEXT_TOKENS), 256
    # The driver does not tell the memory of a GPU that shares its host's, so vLLM takes such a GPU for a small one.
    is_told = not gpu.unified_memory
    is_meant = release.large_gpu_defaults and (release.a100_is_large or "a100" not in gpu.id)
    is_large = is_meant and is_told and total_bytes >= _LARGE_GPU_BYTES
    if release.huge_gpu_defaults and is_told and total_bytes >= _HUGE_GPU_BYTES:
        return 16384, 1024
    if is_large:
        return (8192 if usage == "server" else 16384), 1024
    return (2048 if usage == "server" else 8192), 256
