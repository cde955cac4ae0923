"""vLLM's start-up predicted: memory per rank, blocks, the tokens it prints, or the error it stops with.

available = total x utilization - weights - activation peak - non-torch - CUDA graphs (from 0.21 on)
            - what the second model runner keeps for its requests (from 0.27 on), or what --kv-cache-memory-bytes says
blocks    = available // bytes of one block, the minimum over ranks
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import VllmRelease, vllm_release
from kvplan.catalog.spec import Drafter, LatentAttention, LayerSpec, ModelSpec, SoftmaxAttention
from kvplan.catalog.speculation.heads import multi_token_model
from kvplan.errors import UsageError
from kvplan.estimate.adapters import vllm_slot_bytes
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.dtypes import head_scale_bytes
from kvplan.estimate.kv_cache import pipeline_slices
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.vllm.activation import ActivationPeak, activation_peak
from kvplan.estimate.vllm.budget import (
    cudagraph_bytes,
    largest_graph,
    non_torch_bytes,
    others_bytes,
    requested_bytes,
)
from kvplan.estimate.vllm.drafters import cached_layers, drafter_weight_bytes, with_drafter_peak
from kvplan.estimate.vllm.groups import (
    BlockPlan,
    RequestShape,
    blocks_per_request,
    longest_that_fits,
    plan_blocks,
    printed_blocks_per_request,
)
from kvplan.estimate.vllm.kernels import (
    ExpertLayout,
    attention_workspace_bytes,
    captures_whole_steps,
    check_pooled_keys,
    expert_layout,
    index_graph_bytes,
    needs_block_per_sequence,
    repeats_block_scales,
)
from kvplan.estimate.vllm.leftovers import profile_leftovers
from kvplan.estimate.vllm.local_memory import NO_GROWTH, LocalMemory, local_memory
from kvplan.estimate.vllm.memo import Memo, ModelMemo, RankParts, memo_of
from kvplan.estimate.vllm.modalities import as_limited
from kvplan.estimate.vllm.offloading import offloaded_bytes
from kvplan.estimate.vllm.rope_tables import rope_table_bytes
from kvplan.estimate.vllm.runners import embedded_step_bytes, kept_state_bytes
from kvplan.estimate.vllm.settings import VllmSettings, resolve_settings
from kvplan.estimate.vllm.weights import (
    AllocatorKind,
    WeightShare,
    buffer_bytes_per_token,
    loaded_beside,
    per_layer_input_bytes,
    rank_weight_bytes,
    stream_buffer_bytes,
)
from kvplan.settings import FilledSettings, ServingSettings

VllmOutcome = Literal["ok", "oom_weights", "oom_kv_init", "rejected_ctx", "rejected_seqs"]


@dataclass(frozen=True, slots=True)
class RankMemory:
    """One rank's share of its GPU. ``available_kv_bytes`` can be negative: then nothing is left."""

    weight_bytes: int
    activation: ActivationPeak
    non_torch_bytes: int
    cudagraph_bytes: int
    """What the captured graphs take; part of the budget only where the release subtracts them."""
    subtracted_graph_bytes: int
    requested_bytes: int
    blocks: BlockPlan
    state_bytes: int = 0
    """What vLLM's second model runner keeps for its requests, as far as the release's budget counts it."""
    needs_block_per_sequence: bool = False
    """Whether vLLM refuses a ``max_num_seqs`` above the number of blocks."""
    given_pool_bytes: int | None = None
    """``--kv-cache-memory-bytes``: the pool is that, whatever is left, and all of the GPU is the budget."""
    segment_bytes: int = 0
    """Of ``non_torch_bytes``: what PyTorch keeps of segments that are partly in use, where the budget counts it."""
    pinned_bytes: int = 0
    """Part of ``non_torch_bytes``: a freed matrix that a first start cannot give back (``profile_leftovers``)."""
    local: LocalMemory = NO_GROWTH
    """What kernels that are tried out make the driver keep; its ``grown_bytes`` are part of ``non_torch_bytes``."""
    offloaded_bytes: int = 0
    """``--cpu-offload-gb``: weights that lie in the host's memory, beside ``weight_bytes``."""

    @property
    def used_bytes(self) -> int:
        """All that the budget has beside the pool."""
        used = self.weight_bytes + self.state_bytes + self.activation.peak_bytes + self.non_torch_bytes
        return used + self.subtracted_graph_bytes

    @property
    def available_kv_bytes(self) -> int:
        return self.requested_bytes - self.used_bytes if self.given_pool_bytes is None else self.given_pool_bytes

    @property
    def lacking_bytes(self) -> int:
        """What the GPU is short of for a pool of a given size."""
        return max(self.used_bytes + (self.given_pool_bytes or 0) - self.requested_bytes, 0)

    @property
    def num_blocks(self) -> int:
        return max(self.available_kv_bytes, 0) // self.blocks.bytes_per_block


@dataclass(frozen=True, slots=True)
class VllmPrediction:
    """What vLLM prints at start-up, or why it stops. Bytes are those of ``rank``, the smallest.

    ``kv_cache_tokens`` is what this release prints as "GPU KV cache size". ``missing_bytes``: how much more one request
    would need. ``blocks_per_request``: what the printed concurrency divides by. ``most_num_seqs``: the largest
    ``max_num_seqs`` that it starts with, None where blocks do not limit it.
    """

    version: str
    settings: VllmSettings
    rank: RankMemory
    num_blocks: int
    block_size: int
    bytes_per_block: int
    num_groups: int
    blocks_per_request: int
    kv_cache_tokens: int
    max_concurrency: float
    largest_max_model_len: int
    missing_bytes: int
    outcome: VllmOutcome
    most_num_seqs: int | None = None

    @property
    def fits(self) -> bool:
        return self.outcome == "ok"


def predict_vllm(
    spec: ModelSpec,
    gpu: GpuProfile,
    settings: ServingSettings = ServingSettings(),
    version: str = "latest",
    *,
    memo: Memo | None = None,
) -> VllmPrediction:
    """The start-up of vLLM ``version`` with ``settings`` on as many ``gpu`` as the parallel sizes say.

    ``memo`` may be shared between calls for any models. UsageError where the ranks cannot divide the model; a model
    that does not fit is an ``outcome``, not an error.
    """
    return fill_smallest(predict_ranks(spec, gpu, settings, version, memo=memo))


@dataclass(frozen=True, slots=True)
class PredictedRanks:
    """A rank of each pipeline stage: which layers it has (``parts``), and what it takes of its GPU."""

    release: VllmRelease
    resolved: VllmSettings
    parts: tuple[range, ...]
    ranks: tuple[RankMemory, ...]


def predict_ranks(
    spec: ModelSpec,
    gpu: GpuProfile,
    settings: ServingSettings = ServingSettings(),
    version: str = "latest",
    *,
    memo: Memo | None = None,
) -> PredictedRanks:
    """What a rank of each stage takes: see ``predict_vllm``, which fills the pool of the one with the least room."""
    release = vllm_release(version)
    memo = {} if memo is None else memo
    known = _with_own_drafter(memo_of(memo, spec), settings, memo)
    spec, settings = known.spec, as_limited(known.spec, settings)
    resolved = resolve_settings(spec, gpu, settings, release)
    known.check_division(ParallelLayout.of(resolved.serving))
    check_pooled_keys(spec, gpu)
    if spec.has_grouped_keys and not release.grouped_keys_in_fp8 and resolved.serving.kv_cache_dtype != "bfloat16":
        raise UsageError(f"vLLM {release.text} keeps {spec.served_id} in bfloat16 alone.", hint="try vllm@0.33")
    serving = resolved.serving
    parts = pipeline_slices(spec.num_layers, serving.pipeline_parallel_size, serving.pp_layer_partition)
    ranks = tuple(_rank_memory(known, part, gpu, resolved, release) for part in parts)
    return PredictedRanks(release, resolved, parts, ranks)


def fill_smallest(found: PredictedRanks) -> VllmPrediction:
    """The start of all ranks: they have the blocks of the one with the least room."""
    smallest = min(found.ranks, key=lambda rank: rank.num_blocks)
    return fill_pool(smallest, smallest.available_kv_bytes, found.resolved, found.release)


def _with_own_drafter(known: ModelMemo, settings: ServingSettings, memo: Memo) -> ModelMemo:
    """The model with its multi-token-prediction layers as drafter, for callers that only give a number of tokens."""
    spec, count = known.spec, settings.num_speculative_tokens
    if spec.drafter is not None or not count:
        return known
    if count not in known.drafted:
        model = multi_token_model(spec)
        drafter = None if model is None else Drafter("mtp", spec.served_id, count, model)
        known.drafted[count] = replace(spec, drafter=drafter)
    return memo_of(memo, known.drafted[count])


_EIGHT_BIT_FLOATS = ("fp8", "fp8_e4m3")


def cache_settings(spec: ModelSpec, settings: FilledSettings) -> CacheSettings:
    """How the KV cache is stored on one rank.

    UsageError for scales of keys and values that are of unlike sizes, which vLLM has no kernels for
    (vllm/v1/attention/backends/triton_attn_diffkv.py, supported_kv_cache_dtypes).
    """
    if head_scale_bytes(settings.kv_cache_dtype) and any(
        isinstance(mixer, SoftmaxAttention) and mixer.head_size_k != mixer.head_size_v
        for layer in spec.layers
        for mixer in layer.mixers
    ):
        raise UsageError(
            f"vLLM has no KV cache in {settings.kv_cache_dtype} for keys and values of unlike sizes, as in "
            f"{spec.served_id}.",
            hint="use --kv-cache-dtype fp8",
        )
    _check_grouped_keys(spec, settings)
    cache = CacheSettings(
        model_dtype=settings.dtype,
        kv_dtype=settings.kv_cache_dtype,
        tensor_parallel_size=settings.tensor_parallel_size,
        encoder_tokens=settings.encoder_tokens,
        num_speculative_tokens=settings.num_speculative_tokens,
    )
    return as_vllm_stores(spec, cache)


def _check_grouped_keys(spec: ModelSpec, settings: FilledSettings) -> None:
    """UsageError for what the kernels of Qwen 4's attention do not take (vllm/models/qwen4_exp/nvidia/qsa.py)."""
    if not spec.has_grouped_keys:
        return
    refused = {
        f"weights in {settings.dtype}": settings.dtype != "bfloat16",
        f"a KV cache in {settings.kv_cache_dtype}": settings.kv_cache_dtype not in ("bfloat16", *_EIGHT_BIT_FLOATS),
        "a context divided over GPUs": settings.decode_context_parallel_size > 1,
    }
    found = next((what for what, is_asked in refused.items() if is_asked), None)
    if found is not None:
        raise UsageError(
            f"vLLM does not serve {spec.served_id} with {found}.",
            hint="use bfloat16, with a KV cache in bfloat16 or fp8, and no --decode-context-parallel-size",
        )


def as_vllm_stores(spec: ModelSpec, cache: CacheSettings) -> CacheSettings:
    """``cache`` with the index keys of sparse latent attention, which are in 8 bits whatever is asked for."""
    return replace(cache, indexer_dtype="fp8") if spec.has_indexer else cache


def _rank_memory(
    known: ModelMemo, part: range, gpu: GpuProfile, resolved: VllmSettings, release: VllmRelease
) -> RankMemory:
    spec, settings = known.spec, resolved.serving
    parts = _rank_parts(known, part, gpu, resolved, release)
    embeds, samples, num_layers = part.start == 0, part.stop == spec.num_layers, parts.num_layers
    graphs = _graph_bytes(spec, parts, gpu, resolved, release)
    keeps_state = resolved.second_runner and release.counts_runner_state
    state = kept_state_bytes(spec, settings) if keeps_state and samples else 0
    state += embedded_step_bytes(spec, settings) if keeps_state and embeds else 0
    given = settings.kv_cache_memory_bytes
    weights = parts.weight_bytes + parts.buffer_bytes_per_token * settings.max_num_batched_tokens
    weights += per_layer_input_bytes(spec, settings) + (stream_buffer_bytes(spec, settings) if samples else 0)
    offloaded = offloaded_bytes(spec, part, gpu, settings, weights)
    peak = activation_peak(
        spec,
        parts.layer_kinds,
        gpu,
        resolved,
        release,
        num_layers=num_layers,
        weight_bytes=weights - offloaded,
        embeds=embeds,
        samples=samples,
    )
    left = profile_leftovers(spec, parts, gpu, resolved, release, samples=samples, embeds=embeds)
    local = local_memory(spec, parts.layer_kinds, gpu, settings, release)
    return RankMemory(
        weight_bytes=weights - offloaded,
        activation=with_drafter_peak(peak, spec, gpu, settings, release) if samples else peak,
        non_torch_bytes=non_torch_bytes(
            gpu,
            settings,
            release,
            parts.layer_kinds,
            exchanges_tokens=spec.is_mixture and ParallelLayout.of(settings).exchanges_tokens,
        )
        + left.segment_bytes
        + left.pinned_bytes
        + local.grown_bytes,
        segment_bytes=left.segment_bytes,
        pinned_bytes=left.pinned_bytes,
        local=local,
        cudagraph_bytes=graphs,
        subtracted_graph_bytes=graphs if resolved.subtract_graphs or given is not None else 0,
        requested_bytes=requested_bytes(settings, release)
        if given is None
        else settings.device_memory_bytes - others_bytes(settings),
        blocks=parts.blocks,
        state_bytes=state,
        needs_block_per_sequence=needs_block_per_sequence(spec, gpu, settings, release),
        given_pool_bytes=given,
        offloaded_bytes=offloaded,
    )


def _graph_bytes(
    spec: ModelSpec, parts: RankParts, gpu: GpuProfile, resolved: VllmSettings, release: VllmRelease
) -> int:
    """vLLM's estimate of a rank's CUDA graphs, with what is first made while they are captured."""
    settings = resolved.serving
    if settings.enforce_eager or gpu.is_cpu:
        return 0
    largest, layers = largest_graph(spec, gpu, settings, release), parts.layer_kinds
    whole = captures_whole_steps(spec, gpu, settings, release)
    graphs = cudagraph_bytes(
        parts.num_layers,
        gpu,
        settings,
        largest,
        whole=whole and release.captures_whole_steps,
        measured=resolved.second_runner and resolved.subtract_graphs,
    )
    workspace = attention_workspace_bytes(layers, gpu, settings, release) if whole else 0
    return graphs + workspace + index_graph_bytes(layers, settings, largest, whole=whole)


def _rank_parts(
    known: ModelMemo, part: range, gpu: GpuProfile, resolved: VllmSettings, release: VllmRelease
) -> RankParts:
    spec, settings = known.spec, resolved.serving
    layout, quantization = ParallelLayout.of(settings), settings.quantization
    cached = (settings.kv_cache_dtype, settings.block_size, settings.encoder_tokens, resolved.state_chunk)
    # Only padded experts differ between GPUs; for other models a search over GPUs finds the parts in the memo.
    is_padded = spec.quantization is not None and spec.quantization.method == "mxfp4"
    experts = expert_layout(spec, gpu, release) if is_padded else ExpertLayout()
    allocator = _allocator(gpu, settings, release)
    repeats = repeats_block_scales(gpu, release)
    loaded = (settings.num_speculative_tokens, settings.language_model_only, settings.lora_slots, experts, repeats)
    key = (part, layout, settings.dtype, quantization, settings.max_model_len, cached, loaded, allocator, release)
    if key in known.parts:
        return known.parts[key]
    layers = as_attended(spec, release).layers[part.start : part.stop]
    as_stored, formats = as_loaded(spec, release), known.stored_formats(quantization)
    weight_bytes = rank_weight_bytes(
        as_stored,
        part,
        layout=layout,
        dtype=settings.dtype,
        formats=formats,
        max_model_len=settings.max_model_len,
        with_towers=not settings.language_model_only,
        expert_layout=experts,
        allocator=allocator,
        repeats_block_scales=repeats,
        absorbs_latents=release.v1 and release.latent_cache,
        qwen3_positions=release.qwen3_positions,
    )
    free_pieces: tuple[int, ...] = ()
    if allocator == "limited":
        from_plain = spec.quantization is None and quantization == "fp8"
        # Modules are made with the checkpoint's scales, which Marlin repeats when all are loaded.
        share = WeightShare(settings.dtype, formats, layout, expert_layout=experts, allocator=allocator)
        published = formats.quantization
        is_plain = published is None or (published.method in _REPACKED_ALIKE and not spec.is_mixture)
        is_plain = is_plain and not spec.extras and not spec.further_ropes
        rope = rope_table_bytes(spec, settings.dtype, settings.max_model_len, release.qwen3_positions)
        beside, free_pieces = loaded_beside(
            as_stored, part, share, from_plain=from_plain, rope_bytes=rope if is_plain else 0
        )
        weight_bytes += beside if from_plain or is_plain else 0
    weight_bytes += vllm_slot_bytes(spec, part, settings, settings.dtype, release.heads_as_embeddings)
    if spec.drafter is not None and part.stop == spec.num_layers:
        weight_bytes += drafter_bytes(spec, gpu, settings, release)
        layers += cached_layers(spec.drafter)
    kept = cache_settings(spec, settings)
    blocks = plan_blocks(layers, kept, settings.block_size, release, state_chunk=resolved.state_chunk)
    buffers = buffer_bytes_per_token(layers, settings.dtype)
    found = RankParts(layers, _distinct(layers), weight_bytes, blocks, buffers, free_pieces)
    known.parts[key] = found
    return found


_REPACKED_ALIKE = ("awq", "gptq")
"""Formats whose tensors are packed anew into as many bytes, after all are made: they come to lie as they were.

Qwen2.5-7B in AWQ has 16 MiB more than its tensors in 0.29.0 and 0.33.0, and 15 by this replay. Stacked experts are
repacked otherwise, and were not looked at.
"""


def drafter_bytes(spec: ModelSpec, gpu: GpuProfile, settings: FilledSettings, release: VllmRelease) -> int:
    """Return the bytes of the drafter's weights on a rank of the last stage; 0 without one."""
    if spec.drafter is None:
        return 0
    return drafter_weight_bytes(
        spec,
        spec.drafter,
        ParallelLayout.of(settings),
        settings.dtype,
        settings.max_model_len,
        absorbs_latents=release.v1,
        allocator=_allocator(gpu, settings, release),
        repeats_block_scales=repeats_block_scales(gpu, release),
    )


def _allocator(gpu: GpuProfile, settings: FilledSettings, release: VllmRelease) -> AllocatorKind:
    if settings.expandable_segments:
        return "expandable"
    return "splitting" if release.splits_large_weights or gpu.vendor != "nvidia" else "limited"


def _distinct(layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """One layer of each kind: a peak is the maximum over them."""
    found: list[LayerSpec] = []
    for layer in layers:
        if layer not in found:
            found.append(layer)
    return tuple(found)


_HEAD_SIZES_OF_OLD_KERNELS = (64, 80, 96, 112, 128)


def as_attended(spec: ModelSpec, release: VllmRelease) -> ModelSpec:
    """``spec`` with the attention that ``release`` runs it with."""
    if release.latent_cache or not spec.is_latent:
        return spec
    kept = {id(layer): without_latent_cache(layer) for layer in spec.layers}
    return replace(spec, layers=tuple(kept[id(layer)] for layer in spec.layers))


def as_loaded(spec: ModelSpec, release: VllmRelease) -> ModelSpec:
    """``spec`` with the matrices that ``release`` makes and never uses."""
    if not release.projects_shared_keys or not spec.architecture.startswith(("Gemma3n", "Gemma4")):
        return spec
    return replace(spec, layers=tuple(_with_unused_keys(spec, layer) for layer in spec.layers))


def _with_unused_keys(spec: ModelSpec, layer: LayerSpec) -> LayerSpec:
    """A layer that reads another one's cache, with matrices of keys and values like that one's."""
    mixer = layer.mixer
    if not isinstance(mixer, SoftmaxAttention) or mixer.kv_shared_with is None:
        return layer
    source = spec.layers[mixer.kv_shared_with].mixer
    unused = () if source is None else tuple(each for each in source.tensors if each.name.endswith(_UNUSED))
    return replace(layer, mixer=replace(mixer, tensors=mixer.tensors + unused))


_UNUSED = (".k_proj", ".v_proj", ".k_norm")


def without_latent_cache(layer: LayerSpec) -> LayerSpec:
    """Latent attention as releases before 0.7.1 ran it: K and V of every head, padded to a size their kernels knew."""
    mixer = layer.mixer
    if not isinstance(mixer, LatentAttention):
        return layer
    wanted = mixer.qk_nope_head_size + mixer.qk_rope_head_size
    head = 256 if wanted > 128 else next(size for size in _HEAD_SIZES_OF_OLD_KERNELS if size >= wanted)
    return replace(layer, mixer=SoftmaxAttention(mixer.num_heads, mixer.num_heads, head, head, tensors=mixer.tensors))


def request_shape(resolved: VllmSettings, release: VllmRelease) -> RequestShape:
    """One request of ``max_model_len`` tokens as the engine admits it."""
    settings = resolved.serving
    return RequestShape(
        max_model_len=-(-settings.max_model_len // settings.decode_context_parallel_size),
        in_flight_tokens=release.in_flight_batches * settings.max_num_batched_tokens,
        states_per_request=resolved.states_per_request,
        encoder_tokens=settings.encoder_tokens or 0,
    )


def fill_pool(rank: RankMemory, available_bytes: int, settings: VllmSettings, release: VllmRelease) -> VllmPrediction:
    """What ``available_bytes`` of KV memory hold on the smallest rank: blocks, concurrency, printed tokens, outcome."""
    plan = rank.blocks
    num_blocks = max(available_bytes, 0) // plan.bytes_per_block
    # One block is never given out; newer releases leave it out where they ask whether a request fits.
    checked_bytes = available_bytes - (plan.bytes_per_block if release.reserves_null_block else 0)
    shape = request_shape(settings, release)
    needed_bytes = blocks_per_request(plan, shape) * plan.bytes_per_admitted_block
    counted = printed_blocks_per_request(plan, shape)
    concurrency = num_blocks / counted
    printed = printed_tokens(plan, num_blocks, concurrency, settings.serving, release)
    contexts = settings.serving.decode_context_parallel_size
    return VllmPrediction(
        version=release.text,
        settings=settings,
        rank=rank,
        num_blocks=num_blocks,
        block_size=plan.block_size,
        bytes_per_block=plan.bytes_per_block,
        num_groups=len(plan.groups),
        blocks_per_request=counted,
        kv_cache_tokens=printed,
        max_concurrency=concurrency,
        largest_max_model_len=longest_that_fits(plan, shape, max(checked_bytes, 0)) * contexts,
        missing_bytes=max(needed_bytes - checked_bytes, rank.lacking_bytes, 0),
        outcome=_outcome(rank, num_blocks, checked_bytes, needed_bytes, settings.serving.max_num_seqs),
        most_num_seqs=num_blocks if rank.needs_block_per_sequence else None,
    )


def printed_tokens(
    plan: BlockPlan, num_blocks: int, concurrency: float, settings: FilledSettings, release: VllmRelease
) -> int:
    """The number behind "GPU KV cache size", which changed its meaning with 0.20.1."""
    if release.v1 and release.prints_concurrency_tokens:
        return int(concurrency * settings.max_model_len)
    return num_blocks // len(plan.groups) * plan.block_size * settings.decode_context_parallel_size


def _outcome(
    rank: RankMemory, num_blocks: int, checked_bytes: int, needed_bytes: int, max_num_seqs: int
) -> VllmOutcome:
    """Judge in the order of vLLM's own checks. checked_bytes: of the pool, as far as a request may fill it."""
    if rank.weight_bytes > rank.requested_bytes:
        return "oom_weights"
    if checked_bytes <= 0 or num_blocks < 1 or rank.lacking_bytes:
        return "oom_kv_init"
    if checked_bytes < needed_bytes:
        return "rejected_ctx"
    return "rejected_seqs" if rank.needs_block_per_sequence and max_num_seqs > num_blocks else "ok"
