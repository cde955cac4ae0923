"""What ``kvplan estimate`` answers: one model, one context, and what fits on which GPU. No printing here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvplan.catalog.devices.gpus import GpuProfile, as_equipped
from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.releases.sglang import sglang_release
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.catalog.speculation.reading import with_speculation
from kvplan.catalog.vllm_refusals import service_note
from kvplan.caveats import Caveat, said_of
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.cache_entries import CacheSettings, encoder_tokens_of, fixed_encoder_tokens
from kvplan.estimate.deployments import check_options, place
from kvplan.estimate.dtypes import cache_dtype, serving_dtype
from kvplan.estimate.kv_cache import KvCacheSize, size_sequence
from kvplan.estimate.mixers import speed_caveats
from kvplan.estimate.placed.placement import Placement, SizedDeployment
from kvplan.estimate.sequence_pages import SequencePages, kvplan_pages, vllm_pages
from kvplan.estimate.sglang import sglang_cache_dtype
from kvplan.estimate.speculation import Speculation, drafters_on, speculation_of
from kvplan.estimate.speed.device_speed import DeploymentSpeed, RequestLengths, deployment_speeds
from kvplan.estimate.speed.steps.kernels.expert_backends import check_backend
from kvplan.estimate.vllm.cache_dtypes import cache_of_checkpoint, stated_cache_note
from kvplan.estimate.vllm.learned import LearnedStart
from kvplan.estimate.vllm.modalities import as_limited
from kvplan.estimate.vllm.pages import COMPRESSED_BLOCK
from kvplan.estimate.vllm.prediction import as_attended, as_vllm_stores
from kvplan.estimate.weights import WeightBytes, extra_bytes, lookup_bytes, named_format, size_weights
from kvplan.settings import ServingSettings
from kvplan.units import format_bytes, format_tokens

DEFAULT_BLOCK_SIZE = 16
DEFAULT_IN_FLIGHT_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class EstimateRequest:
    """The question about a model. ``context_tokens`` None: the model's longest. ``learned``: what a log showed.

    ``lengths``: of the requests that speeds are told for."""

    context_tokens: int | None = None
    gpus: tuple[GpuProfile, ...] = ()
    engine: EngineChoice = EngineChoice("vllm")  # noqa: RUF009 - frozen
    settings: ServingSettings = ServingSettings()  # noqa: RUF009 - frozen
    learned: LearnedStart | None = None
    lengths: RequestLengths = RequestLengths()  # noqa: RUF009 - frozen


@dataclass(frozen=True, slots=True)
class EstimateAnswer:
    """The answer. ``assumptions``: every default that was taken, one sentence each.

    ``pages`` is None where the engine cannot hold this mixture of caches; ``in_flight_tokens`` is what its admission
    figure assumes, in ``in_flight_batches`` steps, and ``most_pages`` is for the GPU with the most of them.
    ``extra_weight_bytes`` are towers beside the language model.
    """

    spec: ModelSpec
    context_tokens: int
    dtype: str
    kv_dtype: str
    weights: WeightBytes
    extra_weight_bytes: int
    cache: KvCacheSize
    pages: SequencePages | None
    in_flight_tokens: int
    in_flight_batches: int
    most_pages: SequencePages | None
    most_in_flight_tokens: int
    deployments: tuple[SizedDeployment, ...]
    assumptions: tuple[str, ...] = ()
    speeds: tuple[DeploymentSpeed | None, ...] = ()
    """Beside each deployment; None where it does not fit."""
    speculation: Speculation | None = None
    """What a drafter takes and gains, where the model is served with one."""
    stored: KvCacheSize | None = None
    """The cache as the engine keeps it, where that differs: index keys in 8 bits, whatever the cache's dtype."""

    @property
    def kept(self) -> KvCacheSize:
        """What a token takes of the engine's memory."""
        return self.cache if self.stored is None else self.stored


def make_estimate(
    model: ModelSpec, request: EstimateRequest, measured: MeasuredProfiles = MeasuredProfiles()
) -> EstimateAnswer:
    """Size the model's weights and cache, and place it on every requested GPU. ``measured``: speeds that are known."""
    check_backend(model, request.settings.moe_backend, request.engine.name)
    found = with_speculation(with_quantization(model, request.settings), request.settings)
    spec, asked = found.spec, as_limited(found.spec, found.settings)
    check_options(request.engine, asked)
    ended = service_note(spec.architecture, request.engine.version) if request.engine.name == "vllm" else None
    notes = [*spec.assumptions, *([ended] if ended else [])]
    context_tokens = _context(spec, request, notes)
    dtype = serving_dtype(spec.dtype, asked.dtype)
    cache = _cache_settings(spec, asked, request.engine, dtype, notes)
    settings = replace(asked, max_model_len=context_tokens, dtype=dtype, encoder_tokens=cache.encoder_tokens)
    gpus = as_equipped(
        request.gpus, nvlink_bridge=asked.nvlink_bridge, network_bytes_per_second=asked.network_bytes_per_second
    )
    placements = [place(spec, gpu, request.engine, settings, request.learned) for gpu in gpus]
    cache = _as_kept(spec, cache, placements)
    release = vllm_release(request.engine.version) if request.engine.name == "vllm" else None
    batches = release.in_flight_batches if release is not None else 1
    in_flight = _in_flight_tokens(batches, asked, placements)
    attended = spec if release is None else as_attended(spec, release)
    block_size = _block_size(attended, request, placements)
    pages, most_pages = (
        _pages(attended, request, cache, context_tokens, block_size, tokens, notes) for tokens in in_flight
    )
    _note_dtypes(_without_towers(model) if asked.language_model_only else model, asked, dtype, notes)
    if spec.lookup_elements and release is not None:
        tables = format_bytes(lookup_bytes(spec, dtype))
        notes.append(f"{tables} of the weights, tables of n-grams, lie in the host's memory: vLLM's default.")
    notes.extend(_gathered(placements))
    deployments = tuple(placement.deployment for placement in placements)
    if any(each.fits for each in deployments):
        notes.extend(speed_caveats(spec.layers))
    shown = _without_towers(spec) if asked.language_model_only else spec
    return EstimateAnswer(
        spec=shown,
        context_tokens=context_tokens,
        dtype=dtype,
        kv_dtype=cache.kv_dtype,
        weights=size_weights(spec, dtype),
        extra_weight_bytes=0 if asked.language_model_only else extra_bytes(spec, dtype),
        cache=size_sequence(attended, context_tokens, cache),
        stored=None if release is None else _as_stored(attended, context_tokens, cache),
        pages=pages,
        in_flight_tokens=in_flight[0],
        in_flight_batches=batches,
        most_pages=most_pages,
        most_in_flight_tokens=in_flight[1],
        deployments=deployments,
        assumptions=tuple(dict.fromkeys(notes)),
        speeds=_no_speeds(placements)
        if asked.cpu_offload_gb or asked.decode_context_parallel_size > 1 or request.engine.name == "sglang"
        else deployment_speeds(
            attended,
            gpus,
            placements,
            cache,
            measured,
            request.engine,
            drafters_on(spec, deployments, cache, request.lengths.average_context),
            request.lengths,
        ),
        speculation=speculation_of(spec, gpus, deployments, cache, context_tokens, asked.acceptance_rate),
    )


def _as_stored(spec: ModelSpec, context_tokens: int, cache: CacheSettings) -> KvCacheSize | None:
    """The cache as vLLM keeps it; None where that is no other."""
    stored = as_vllm_stores(spec, cache)
    return None if stored == cache else size_sequence(spec, context_tokens, stored)


def _no_speeds(placements: Sequence[Placement]) -> tuple[None, ...]:
    """How fast weights come over the bus, and what a context divided over ranks costs, is not modelled."""
    return (None,) * len(placements)


def _as_kept(spec: ModelSpec, cache: CacheSettings, placements: Sequence[Placement]) -> CacheSettings:
    """Sparse latents and compressed attention as their kernel keeps them, where that is the same on every GPU."""
    kept = {placement.deployment.settings.kv_cache_dtype for placement in placements}
    is_decided = spec.has_indexer or spec.is_compressed
    return replace(cache, kv_dtype=kept.pop()) if is_decided and len(kept) == 1 else cache


def _without_towers(spec: ModelSpec) -> ModelSpec:
    return replace(spec, extras=tuple(extra for extra in spec.extras if extra.kind == "multi_token_prediction"))


def _in_flight_tokens(batches: int, asked: ServingSettings, placements: Sequence[Placement]) -> tuple[int, int]:
    """(fewest, most) tokens of one request that ``batches`` at once have in flight on the GPUs asked for."""
    steps = [placement.deployment.settings.max_num_batched_tokens for placement in placements]
    steps = steps or [asked.max_num_batched_tokens or DEFAULT_IN_FLIGHT_TOKENS]
    return batches * min(steps), batches * max(steps)


def _gathered(placements: list[Placement]) -> list[str]:
    """The engine's defaults, each with the GPUs it was taken on (none named where it was taken on all)."""
    gpus: dict[str, list[str]] = {}
    for placement in placements:
        for note in placement.notes:
            gpus.setdefault(note, []).append(placement.deployment.gpu)
    return [note if len(names) == len(placements) else said_of(", ".join(names), note) for note, names in gpus.items()]


def with_quantization(spec: ModelSpec, asked: ServingSettings) -> ModelSpec:
    """``spec`` as it is ("auto"), as if published plain ("none"), or in a format's usual recipe.

    UsageError as for ``named_format``.
    """
    found = named_format(asked.quantization, asked.group_size)
    return spec if asked.quantization.casefold() == "auto" else replace(spec, quantization=found, checkpoint=None)


def _context(spec: ModelSpec, request: EstimateRequest, notes: list[str]) -> int:
    longest = spec.max_position_embeddings if request.engine.name == "kvplan" else spec.longest_context
    if request.context_tokens is None:
        if longest is None:
            raise UsageError(f"The config of {spec.served_id} gives no maximum length.", hint="give one: --ctx 32k")
        notes.append(f"--ctx {format_tokens(longest)}: the model's longest context.")
        return longest
    if longest is not None and request.context_tokens > longest:
        if spec.rope is None and not spec.has_state:
            raise KvplanError(
                f"{spec.served_id} has {longest:,} positions; a context of {request.context_tokens:,} is beyond them.",
                hint=f"use --ctx {longest} or less",
            )
        notes.append(
            f"A context of {request.context_tokens:,} is beyond the model's {longest:,} positions; engines refuse it "
            "unless the rotary positions are scaled."
        )
    return request.context_tokens


def _cache_settings(
    spec: ModelSpec, asked: ServingSettings, engine: EngineChoice, dtype: str, notes: list[str]
) -> CacheSettings:
    release = vllm_release(engine.version) if engine.name == "vllm" else None
    stated = cache_of_checkpoint(spec, asked, release) if release is not None else None
    if engine.name == "sglang":
        stated = cache_dtype(dtype, sglang_cache_dtype(spec, asked.kv_cache_dtype, sglang_release(engine.version)))
    kv_dtype = stated or cache_dtype(dtype, asked.kv_cache_dtype)
    if spec.has_only_states and kv_dtype != dtype:
        said = f"{spec.served_id} keeps states and no keys: --kv-cache-dtype {kv_dtype} changes nothing."
        notes.append(Caveat(said))
        kv_dtype = dtype
    if kv_dtype == "fp8_ds_mla" and not spec.is_latent:
        raise UsageError(
            f"fp8_ds_mla is a layout of latent attention, which {spec.served_id} does not have.",
            hint="use --kv-cache-dtype fp8",
        )
    tokens, fixed = encoder_tokens_of(spec, asked.encoder_tokens), fixed_encoder_tokens(spec)
    if asked.encoder_tokens is None and tokens is not None:
        notes.append(f"A sequence attends to {tokens:,} encoder tokens: --encoder-tokens changes it.")
    elif tokens is not None and fixed is not None and tokens > fixed:
        said = f"--encoder-tokens {tokens:,} is more than the {fixed:,} that {spec.served_id} gives a sequence."
        notes.append(Caveat(said))
    published = spec.quantization.kv_cache_dtype if spec.quantization else None
    if stated is not None and release is not None:
        notes.append(stated_cache_note(stated, release))
    elif published and asked.kv_cache_dtype == "auto":
        notes.append(f"The checkpoint has scales for an {published} KV cache: --kv-cache-dtype {published} uses them.")
    return CacheSettings(
        model_dtype=dtype,
        kv_dtype=kv_dtype,
        encoder_tokens=tokens,
        num_speculative_tokens=asked.num_speculative_tokens,
    )


def _block_size(spec: ModelSpec, request: EstimateRequest, placements: Sequence[Placement]) -> int:
    """Return the block size of the first GPU where they differ: the engine chooses what its kernels there take."""
    if placements:
        return placements[0].deployment.settings.block_size
    usual = COMPRESSED_BLOCK if request.engine.name != "kvplan" and spec.is_compressed else DEFAULT_BLOCK_SIZE
    return request.settings.block_size or usual


def _pages(
    spec: ModelSpec,
    request: EstimateRequest,
    cache: CacheSettings,
    context_tokens: int,
    block_size: int,
    in_flight: int,
    notes: list[str],
) -> SequencePages | None:
    if request.engine.name == "sglang":  # a token is a page, but for windows on Blackwell
        return None
    in_vllm = request.engine.name == "vllm"
    if in_vllm and spec.is_compressed:
        notes.append(
            "vLLM keeps compressed vectors in 8 bits, and what makes them like windows of float32 of their own."
        )
    if in_vllm and spec.has_indexer:
        notes.append("vLLM keeps the indexer's keys in 8 bits, so that blocks can be smaller than the logical size.")
    if request.engine.name == "kvplan":
        return kvplan_pages(
            spec, cache, context_tokens=context_tokens, block_size=block_size, in_flight_tokens=in_flight
        )
    try:
        return vllm_pages(
            spec,
            as_vllm_stores(spec, cache),
            context_tokens=context_tokens,
            block_size=block_size,
            in_flight_tokens=in_flight,
            version=request.engine.version,
        )
    except UsageError:
        raise
    except KvplanError as error:
        notes.append(f"No paged size: {error.message}")
        return None


def _note_dtypes(spec: ModelSpec, asked: ServingSettings, dtype: str, notes: list[str]) -> None:
    if asked.dtype == "auto" and dtype != spec.dtype:
        notes.append(f"The weights are published in {spec.dtype} and assumed to be served in {dtype} (--dtype).")
    for extra in spec.extras:
        if extra.num_parameters is None and extra.kind != "multi_token_prediction":
            notes.append(f"The {extra.name} is not counted: its config does not say enough, or its kind is unknown.")
