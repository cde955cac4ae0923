"""SGLang's pools: what is free after loading, less the share that ``mem_fraction_static`` leaves to activations.

    rest = free after loading - free before loading x (1 - mem_fraction_static)

(srt/mem_cache/kv_cache_configurator.py of SGLang 0.5.23.) Nothing is profiled: activations and CUDA graphs must fit
into what is left. The rest is divided once, at the start:

* layers that keep every token share one pool; ``max_total_num_tokens`` is its size;
* windows have their own pool of ``swa_full_tokens_ratio`` (0.8) times as many tokens; without a prefix cache, and with
  --max-running-requests, what these need (``SglangRelease.caps_windows``);
* recurrent states have their own slots: ``mamba_full_memory_ratio`` (0.9) times the memory of the KV pool. Each request
  that runs takes several (``SglangRelease.state_slots``): hybrid models run as many as these allow for, however much
  room their tokens have. Without a prefix cache (--disable-radix-cache) each takes one, and --max-running-requests is
  their number (_handle_max_mamba_cache);
* layers that read another layer's K and V have room of their own all the same (Gemma 4: get_hybrid_layer_ids counts all
  layers);
* with pipeline stages each has its own layers, and the one with room for the fewest tokens decides for all.

Checked against published logs: tests/data/startup_logs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan.catalog.devices.device_support import compute_capability
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.sglang import SglangRelease, sglang_release
from kvplan.catalog.spec import LatentAttention, LayerSpec, ModelSpec, SoftmaxAttention, SparseIndexer
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.cache_entries import CacheEntry, CacheSettings, layer_entries
from kvplan.estimate.dtypes import cache_dtype, head_scale_bytes, serving_dtype
from kvplan.estimate.kv_cache import pipeline_slices
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.sglang_share import (
    DATA_CENTRE_BLACKWELL,
    image_bytes,
    listed_memory,
    static_fraction,
)
from kvplan.estimate.vllm.budget import CONTEXT_BYTES
from kvplan.estimate.vllm.weights import rank_weight_bytes, stored_formats
from kvplan.settings import ServingSettings

WINDOW_POOL_SHARE = 0.8
STATE_POOL_RATIO = 0.9
_WORKSTATION_BLACKWELL = 12
"""Its major compute capability."""
_EVICTION_INTERVAL = 128
"""Decode steps between two looks for tokens that have left the window (SGLANG_SWA_EVICTION_INTERVAL)."""
_PAGE_ON_BLACKWELL = 64
"""Tokens of a page of trtllm_mha, by which models with windows attend there; of one token elsewhere."""
_WINDOWLESS_TYPES = ("gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "olmo2", "olmo3")
"""Models whose windows SGLang keeps like full attention (server_args.py: disable_hybrid_swa_memory)."""

_FEWEST_SEATS, _MOST_SEATS, _TOKENS_PER_SEAT = 2048, 4096, 512
"""Requests that run at most where nothing is said: 512 for each longest context that the pool holds, within bounds."""


@dataclass(frozen=True, slots=True)
class SglangPrediction:
    """Bytes of one GPU and the tokens of the pools.

    ``kv_cache_tokens`` is what SGLang prints as ``max_total_num_tokens``; ``bytes_per_token`` counts the window pool's
    share. ``kv_pool_bytes`` is everything for caches: tokens, windows and states. ``max_running_requests``: those of a
    data-parallel group that run at most. ``window_length``: of the longest window. ``kv_cache_dtype``: as kept.
    """

    device_memory_bytes: int
    mem_fraction_static: float
    weight_bytes: int
    kv_pool_bytes: int
    bytes_per_token: int
    kv_cache_tokens: int
    window_tokens: int = 0
    state_slots: int = 0
    state_pool_bytes: int = 0
    max_running_requests: int = _FEWEST_SEATS
    window_length: int = 0
    kv_cache_dtype: str = "auto"

    def sequences_of(self, num_tokens: int) -> float:
        """Return how many sequences of so many tokens run at once: tokens, windows and seats allow it."""
        fullest = self.kv_cache_tokens / num_tokens
        if self.window_tokens:
            fullest = min(fullest, self.window_tokens / min(num_tokens, self.window_length + _EVICTION_INTERVAL))
        return min(fullest, float(self.max_running_requests))


@dataclass(frozen=True, slots=True)
class _Cells:
    """Bytes on one rank: of a token in all layers that keep it, of one in all windows, of one sequence's states.

    ``window_tokens``: of the longest window; ``kv_dtype``: of the cache.
    """

    token_bytes: int
    window_token_bytes: int
    state_bytes: int
    window_tokens: int
    kv_dtype: str


@dataclass(frozen=True, slots=True)
class _Pools:
    """Bytes of a token of the first pool with its share of the windows', tokens of both."""

    token_bytes: int
    tokens: int
    window_tokens: int


def predict_sglang(
    spec: ModelSpec,
    gpu: GpuProfile,
    settings: ServingSettings = ServingSettings(),
    free_bytes: int | None = None,
    version: str = "latest",
    *,
    dp_attention: bool = False,
) -> SglangPrediction:
    """The pools of ``spec`` on ``gpu``. KvplanError for caches of encoders and of compressed attention.

    ``gpu_memory_utilization`` stands for ``mem_fraction_static``. ``free_bytes``: what the log says was free before
    loading ("avail mem"), instead of the GPU's total less a context. ``version``: of SGLang.
    ``dp_attention``: data-parallel groups attend beside each other and share the experts (``--enable-dp-attention``).
    """
    stages = pipeline_slices(spec.num_layers, settings.pipeline_parallel_size)
    found = (_predict_stage(spec, gpu, settings, free_bytes, version, layers, dp_attention) for layers in stages)
    return min(found, key=lambda each: (each.kv_cache_tokens, each.kv_pool_bytes))


def _predict_stage(
    spec: ModelSpec,
    gpu: GpuProfile,
    settings: ServingSettings,
    free_bytes: int | None,
    version: str,
    layers: range,
    dp_attention: bool,
) -> SglangPrediction:
    """The pools of a GPU that has ``layers``."""
    release, layout = sglang_release(version), ParallelLayout.of(settings)
    dtype = serving_dtype(spec.dtype, settings.dtype)
    cells = _cells(spec, gpu, settings, dtype, release, layers)
    weight_bytes = rank_weight_bytes(
        spec,
        layers,
        layout=layout,
        dtype=dtype,
        formats=stored_formats(spec, settings.quantization),
        max_model_len=spec.longest_context or 1,
        in_float32=False,
    )
    total = settings.device_memory_bytes or gpu.memory_bytes
    groups = settings.data_parallel_size if dp_attention else 1
    static = settings.gpu_memory_utilization
    if static is None:
        static = static_fraction(spec, gpu, settings, groups, release)
    free = free_bytes or total - CONTEXT_BYTES
    rest = int(free * static) - weight_bytes - image_bytes(spec, gpu, settings.max_num_seqs, release)
    padding = 1 if release.pads_states else 0
    slots = _state_slots(rest, cells.state_bytes, padding)
    own_seats = settings.max_num_seqs if settings.enable_prefix_caching is False else None
    if own_seats is not None:
        own_seats = max(own_seats // groups, 1)
        slots = min(slots, own_seats)
    states = (slots + padding) * cells.state_bytes
    capped = None
    if release.caps_windows and own_seats is not None:
        chunk = settings.max_num_batched_tokens or release.chunked_prefill_tokens(listed_memory(gpu, settings))
        capped = _capped_windows(cells.window_tokens, own_seats, chunk, gpu)
    pools = _divided(max(rest - states, 0), cells, capped)
    seats = _seats(spec, settings, pools.tokens, slots if cells.state_bytes else None, groups, release)
    sizes = (pools.token_bytes, pools.tokens, pools.window_tokens)
    return SglangPrediction(
        total, static, weight_bytes, rest, *sizes, slots, states, seats, cells.window_tokens, cells.kv_dtype
    )


def _divided(pool_bytes: int, cells: _Cells, capped_windows: int | None) -> _Pools:
    """The pools of tokens and of windows; ``capped_windows``: tokens of the latter, where requests decide them."""
    full, window = cells.token_bytes, cells.window_token_bytes
    if not full:
        tokens = pool_bytes // max(window, 1)
        return _Pools(window, tokens, tokens)
    if window and capped_windows is not None:
        return _Pools(full, max(pool_bytes - capped_windows * window, 0) // full, capped_windows)
    each = full + int(WINDOW_POOL_SHARE * window)
    tokens = pool_bytes // each
    return _Pools(each, tokens, int(tokens * WINDOW_POOL_SHARE) if window else 0)


def _seats(
    spec: ModelSpec,
    settings: ServingSettings,
    tokens: int,
    state_slots: int | None,
    groups: int,
    release: SglangRelease,
) -> int:
    """Requests of one of ``groups`` that run at most (max_running_requests; resolve_max_num_reqs in 0.5.23)."""
    longest = settings.max_model_len or spec.longest_context or 1
    usual = min(max(tokens * _TOKENS_PER_SEAT // longest, _FEWEST_SEATS), _MOST_SEATS)
    seats = usual if settings.max_num_seqs is None else max(settings.max_num_seqs // groups, 1)
    if state_slots is None:
        return seats
    keeps_prefixes = settings.enable_prefix_caching is not False
    return min(seats, state_slots // release.state_slots(spec.architecture) if keeps_prefixes else state_slots)


def _state_slots(rest_bytes: int, state_bytes: int, padding: int) -> int:
    """Sequences whose states fit into their share of the rest, beside ``padding`` slots."""
    if not state_bytes:
        return 0
    budget = max(rest_bytes, 0) * STATE_POOL_RATIO / (1 + STATE_POOL_RATIO)
    return max(int(budget // state_bytes) - padding, 0)


def _capped_windows(window_tokens: int, num_seqs: int, chunk_tokens: int, gpu: GpuProfile) -> int:
    """Tokens of the window pool that ``num_seqs`` sequences and two chunks of prompts need (``caps_windows``)."""
    page = _PAGE_ON_BLACKWELL if compute_capability(gpu)[0] == DATA_CENTRE_BLACKWELL else 1
    each = window_tokens + _EVICTION_INTERVAL + 2 * page
    return -(-(each * num_seqs + 2 * chunk_tokens + page) // page) * page


def sglang_cache_dtype(spec: ModelSpec, asked: str, release: SglangRelease | None = None) -> str:
    """The KV cache's as SGLang runs with ``asked``: auto is what the checkpoint states, if the release takes that."""
    methods = (release or sglang_release()).stated_cache
    stated = spec.quantization.stated_cache_dtype(methods) if spec.quantization else None
    found = stated if asked == "auto" and stated is not None else asked
    return "fp8" if found.startswith("fp8") else found


def _cells(
    spec: ModelSpec, gpu: GpuProfile, settings: ServingSettings, dtype: str, release: SglangRelease, layers: range
) -> _Cells:
    kv_dtype = sglang_cache_dtype(spec, settings.kv_cache_dtype, release)
    if head_scale_bytes(kv_dtype):
        raise UsageError(f"SGLang has no KV cache in {kv_dtype}.", hint="use --kv-cache-dtype fp8, or --engine vllm")
    indexer = None
    if spec.has_indexer:
        kv_dtype = _sparse_cache_dtype(spec, kv_dtype, gpu, release)
        if not release.elides_index_keys:
            mixers = (layer.mixer for layer in spec.layers)
            indexer = next(each.indexer for each in mixers if isinstance(each, LatentAttention) and each.indexer)
    cache = CacheSettings(
        model_dtype=dtype,
        kv_dtype=cache_dtype(dtype, kv_dtype),
        tensor_parallel_size=settings.tensor_parallel_size,
        indexer_dtype="fp8" if spec.has_indexer else None,
    )
    keeps_windows = str(spec.raw_config.get("model_type", "")) not in _WINDOWLESS_TYPES
    tokens = windows = states = longest = 0
    for layer in (_with_own_cache(spec.layers[index], indexer) for index in layers):
        is_convolved = layer.parallel_state is not None and layer.parallel_state.kind == "stream_conv"
        if layer.cross_attention is not None or is_convolved:
            raise _not_modelled(spec)
        for entry in layer_entries(layer, cache):
            if entry.kind in ("cross", "compressed", "index_tail"):
                raise _not_modelled(spec)
            states += entry.state_bytes
            if _is_window(entry) and keeps_windows:
                windows += entry.token_bytes
                longest = max(longest, entry.window_tokens or 0)
            else:
                tokens += entry.token_bytes
    return _Cells(tokens, windows, states, longest, cache.kv_dtype)


def _sparse_cache_dtype(spec: ModelSpec, kv_dtype: str, gpu: GpuProfile, release: SglangRelease) -> str:
    """The KV cache's of sparse latents (``_dsa_kv_cache_dtype_default``), as pools are sized.

    Kernels of Blackwell keep latents and rotary keys in 8 bits, others keep scales and rotary keys in 16
    (``calculate_mla_kv_cache_dim``).
    """
    generation = compute_capability(gpu)[0]
    if kv_dtype == "auto" and generation >= DATA_CENTRE_BLACKWELL:
        kv_dtype = release.sparse_cache_on_blackwell
    is_scaled = generation < DATA_CENTRE_BLACKWELL or (
        generation == _WORKSTATION_BLACKWELL and spec.architecture in release.sparse_scales_on_sm12
    )
    return "fp8_ds_mla" if kv_dtype == "fp8" and release.counts_sparse_scales and is_scaled else kv_dtype


def _with_own_cache(layer: LayerSpec, indexer: SparseIndexer | None) -> LayerSpec:
    """The layer as if it kept K and V itself where it reads another one's, and keys of ``indexer`` if it has none."""
    mixer = layer.mixer
    if isinstance(mixer, SoftmaxAttention) and mixer.kv_shared_with is not None:
        return replace(layer, mixer=replace(mixer, kv_shared_with=None))
    if isinstance(mixer, LatentAttention) and mixer.indexer is None and indexer is not None:
        return replace(layer, mixer=replace(mixer, indexer=indexer))
    return layer


def _is_window(entry: CacheEntry) -> bool:
    return entry.kind in ("sliding", "chunked")


def _not_modelled(spec: ModelSpec) -> KvplanError:
    return KvplanError(
        f"{spec.served_id} has caches for an encoder, convolved or compressed ones, whose pools in SGLang are not "
        "modelled.",
        hint="plan it for vLLM",
    )
