"""One model on one kind of GPU: what fits, under vLLM's start-up, SGLang's or kvplan's own engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from kvplan.catalog.devices.device_support import compute_capability, last_release_hint, missing_kernels_note
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.devices.slices import slice_note
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.releases.facts import release_text
from kvplan.catalog.releases.sglang import sglang_release
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.caveats import Caveat
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.adapters import engine_slot_bytes, vllm_slot_bytes
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.kvplan.memory import EnginePrediction, predict
from kvplan.estimate.kvplan.settings import EngineDevice
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.sglang import SglangPrediction, predict_sglang
from kvplan.estimate.sglang_share import listed_memory
from kvplan.estimate.speed.steps.collectives import bridge_note, network_note
from kvplan.estimate.vllm.budget import CONTEXT_BYTES
from kvplan.estimate.vllm.groups import blocks_per_request
from kvplan.estimate.vllm.learned import LearnedStart, predict_as_learned
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm, request_shape
from kvplan.estimate.vllm.ranges import Cause, KvRange, kv_range, split_loss_bytes
from kvplan.settings import KNOBS, FilledSettings, ServingSettings
from kvplan.units import MIB, format_bytes


@dataclass(frozen=True, slots=True)
class SizedDeployment:
    """One model on one kind of GPU. Bytes are per GPU; blocks, tokens and concurrency are the deployment's.

    ``block_size``: of the pool, where layers of several kinds share blocks larger than in the ``settings``.
    """

    gpu: str
    engine: str
    settings: FilledSettings
    budget_bytes: int
    weight_bytes: int
    activation_peak_bytes: int
    overhead_bytes: int
    kv_pool_bytes: int
    num_blocks: int
    block_size: int
    kv_cache_tokens: int
    max_concurrency: float
    fits: bool
    limit: str | None
    """What stands in the way when it does not fit: the missing bytes, or the largest length that fits."""
    longest_context: int | None = None
    """The longest sequence that fits, where nothing but its length is in the way."""
    kv_range: KvRange | None = None
    """Where 9 of 10 start-ups lie, the prediction inside; None where no start-up has been compared."""
    most_num_seqs: int | None = None
    """The largest ``max_num_seqs`` that starts, where the blocks limit it."""
    graph_bytes: int = 0
    """What CUDA graphs take."""
    graphs_in_overhead: bool = True
    """Whether ``overhead_bytes`` has them: older releases of vLLM capture them later, outside their budget."""

    @property
    def counted_gpu(self) -> str:
        """``h200``, or ``8 x h200``."""
        num_gpus = ParallelLayout.of(self.settings).num_gpus
        return self.gpu if num_gpus == 1 else f"{num_gpus} x {self.gpu}"

    @property
    def kv_pool_bytes_range(self) -> tuple[int, int] | None:
        """(low, high) of ``kv_pool_bytes``."""
        return None if self.kv_range is None else self.kv_range.pool_bytes

    @property
    def kv_cache_tokens_range(self) -> tuple[int, int] | None:
        """(low, high) of ``kv_cache_tokens``."""
        return None if self.kv_range is None else self.kv_range.tokens

    @property
    def most_num_seqs_range(self) -> tuple[int, int] | None:
        """(low, high) of ``most_num_seqs``."""
        return None if self.kv_range is None else self.kv_range.num_seqs

    @property
    def sure_num_seqs(self) -> int | None:
        """The low end of ``most_num_seqs``, or the figure itself where nothing is known of its width or it is 0."""
        ends = self.most_num_seqs_range
        return self.most_num_seqs if ends is None else ends[0] or self.most_num_seqs

    @property
    def max_concurrency_range(self) -> tuple[float, float] | None:
        """(low, high) of ``max_concurrency``."""
        return None if self.kv_range is None else self.kv_range.concurrency


@dataclass(frozen=True, slots=True)
class Placement:
    """A deployment and the defaults that were taken for it.

    sequences_of: how many sequences of so many tokens its pools hold at once while they decode.
    """

    deployment: SizedDeployment
    sequences_of: Callable[[int], int]
    notes: tuple[str, ...] = ()


def place(
    spec: ModelSpec,
    gpu: GpuProfile,
    engine: EngineChoice,
    settings: ServingSettings,
    learned: LearnedStart | None = None,
) -> Placement:
    """``spec`` on ``gpu`` under ``engine``. ``learned``: what a log of vLLM showed. UsageError as ``predict_vllm``."""
    if learned is None:
        placement = PLACED_BY[engine.name](spec, gpu, settings, engine.version)
    else:
        found = predict_as_learned(learned, spec, gpu, settings, engine.version)
        placement = _as_placed(spec, gpu, found.prediction, found.explained)
        placement = replace(placement, notes=(*found.notes, *placement.notes))
    filled = placement.deployment.settings
    layout = ParallelLayout.of(filled)
    links = filter(None, (bridge_note(gpu, layout), network_note(gpu, layout)))
    missing = missing_kernels_note(gpu, engine.version) if engine.name == "vllm" else None
    links = filter(None, (*links, missing and Caveat(f"{missing} {last_release_hint(gpu)}.")))
    notes = (*placement.notes, *_lora_notes(spec, filled, engine.name), *_stand_in_notes(gpu, settings), *links)
    return replace(placement, notes=notes)


_NOTED_SEGMENT_BYTES: Final = 32 * MIB
"""Fewer change no answer."""
_OF_VLLM: Final = (
    "reserved_bytes",
    "kv_cache_memory_bytes",
    "cpu_offload_gb",
    "limit_mm_per_prompt",
    "skip_mm_profiling",
    "warm_start",
    "pp_layer_partition",
    "decode_context_parallel_size",
)


_NOT_OF_SGLANG: Final = (
    "data_parallel_size",
    "block_size",
    "language_model_only",
    "enforce_eager",
    "enable_lora",
    "num_speculative_tokens",
    "speculative_model",
)
"""Settings whose effect on SGLang's memory is not modelled."""


def check_options(engine: EngineChoice, settings: ServingSettings) -> None:
    """UsageError for a setting that the engine's memory model does not have."""
    if engine.name == "vllm":
        return
    for name in (*_OF_VLLM, *(_NOT_OF_SGLANG if engine.name == "sglang" else ())):
        if getattr(settings, name) != KNOBS[name].default:
            raise UsageError(
                f"--engine {engine.name} has no {KNOBS[name].option}.", hint="leave it out, or use --engine vllm"
            )


def _stand_in_notes(gpu: GpuProfile, settings: ServingSettings) -> tuple[str, ...]:
    """Say whose memory a CPU host has that is nobody's, and what a MIG slice has of its GPU."""
    if gpu.part_of is not None:
        return (slice_note(gpu),)
    if gpu.id != "cpu" or settings.device_memory_bytes is not None:
        return ()
    memory = format_bytes(gpu.memory_bytes)
    return (Caveat(f"{gpu.id} stands in for a host with {memory} of memory: give yours with --device-memory."),)


def _lora_notes(spec: ModelSpec, settings: FilledSettings, engine: str) -> tuple[str, ...]:
    """What the slots of adapters take, and what is not known of them."""
    slots = settings.lora_slots
    if slots is None:
        return ()
    if engine == "vllm":
        taken = vllm_slot_bytes(spec, range(spec.num_layers), settings, settings.dtype)
    else:
        taken = engine_slot_bytes(spec, settings, settings.dtype)
    ranks = " over the stages" if settings.pipeline_parallel_size > 1 else ""
    size = element_bytes(settings.dtype)
    elements = taken // (slots.number * slots.rank * size)
    return (
        f"LoRA: slots for {slots.number} of rank up to {slots.rank}, {format_bytes(taken)} of the weights{ranks} = "
        f"{slots.number} x {slots.rank} x {elements:,} x {size} B (stacked x inputs + outputs of every product); what "
        "adapters add to activations and CUDA graphs is not counted.",
    )


def _place_vllm(spec: ModelSpec, gpu: GpuProfile, settings: ServingSettings, version: str) -> Placement:
    return _as_placed(spec, gpu, predict_vllm(spec, gpu, settings, version))


def _as_placed(
    spec: ModelSpec, gpu: GpuProfile, found: VllmPrediction, explained: frozenset[Cause] = frozenset()
) -> Placement:
    rank = found.rank
    groups = found.settings.serving.data_parallel_size
    is_given = rank.given_pool_bytes is not None
    within = (_given_range(found) if is_given else kv_range(spec, gpu, found, explained=explained)).of_groups(groups)
    deployment = SizedDeployment(
        gpu=gpu.id,
        engine=f"vllm@{found.version}",
        settings=found.settings.serving,
        budget_bytes=rank.requested_bytes,
        weight_bytes=rank.weight_bytes,
        activation_peak_bytes=rank.activation.peak_bytes,
        overhead_bytes=rank.state_bytes + rank.non_torch_bytes + rank.subtracted_graph_bytes,
        kv_pool_bytes=max(rank.available_kv_bytes, 0),
        num_blocks=groups * found.num_blocks,
        block_size=found.block_size,
        kv_cache_tokens=groups * found.kv_cache_tokens,
        max_concurrency=groups * found.max_concurrency,
        fits=found.fits,
        limit=_vllm_limit(found, within),
        longest_context=found.largest_max_model_len or None if found.outcome == "rejected_ctx" else None,
        kv_range=within,
        most_num_seqs=found.most_num_seqs,
        graph_bytes=rank.cudagraph_bytes,
        graphs_in_overhead=rank.subtracted_graph_bytes > 0,
    )
    shape = request_shape(found.settings, vllm_release(found.version))

    def sequences_of(num_tokens: int) -> int:
        each = blocks_per_request(rank.blocks, replace(shape, max_model_len=num_tokens, in_flight_tokens=1))
        return groups * (found.num_blocks // max(each, 1))

    notes = (*found.settings.notes, *_option_notes(spec, found, gpu), *_overhead_notes(found))
    notes += _parallel_notes(spec, found)
    return Placement(deployment, sequences_of, notes)


def _given_range(found: VllmPrediction) -> KvRange:
    """A pool of a given size is exactly that."""
    pool, tokens, concurrency = found.rank.available_kv_bytes, found.kv_cache_tokens, found.max_concurrency
    seqs = None if found.most_num_seqs is None else (found.most_num_seqs, found.most_num_seqs)
    return KvRange((pool, pool), (tokens, tokens), (concurrency, concurrency), (), num_seqs=seqs)


def _option_notes(spec: ModelSpec, found: VllmPrediction, gpu: GpuProfile) -> Iterator[str]:
    """What options mean for the figures, where that is not what one may think."""
    settings = found.settings.serving
    if settings.kv_cache_memory_bytes is not None:
        yield (
            "--kv-cache-memory-bytes: the pool is that, and gpu_memory_utilization says only what must be free at the "
            "start; weights, activations, overhead and pool must fit the GPU."
        )
    if settings.cpu_offload_gb and gpu.unified_memory:
        yield f"--cpu-offload-gb changes nothing on {gpu.id}: its memory is the host's."
    elif settings.cpu_offload_gb:
        yield "--cpu-offload-gb: what is offloaded is read over the bus in each step, which no speed here counts."
    if settings.decode_context_parallel_size > 1:
        yield (
            "--decode-context-parallel-size: the pool counts tokens over all ranks that share a context. No start-up "
            "with it has been compared, and its speed is not modelled."
        )
    if settings.enforce_eager:
        yield (
            "--enforce-eager: a step takes at least the launches of its layers, which are taken as 0.57 ms each; 0.40 "
            "and 0.80 were measured elsewhere."
        )
    peak = found.rank.activation
    if peak.peak_bytes > peak.warm_peak_bytes and settings.kv_cache_memory_bytes is None:
        loss = split_loss_bytes(spec, gpu, found)
        still = f"; with vLLM {found.version} it may have {format_bytes(loss)} less still, which the low end counts"
        yield (
            "A first start, which compiles kernels while vLLM measures its peak, has "
            f"{format_bytes(peak.peak_bytes - peak.warm_peak_bytes)} less for the KV cache than a later one, "
            f"which finds them in its compile cache (--warm-start){still if loss else ''}."
        )
    if settings.skip_mm_profiling:
        yield "--skip-mm-profiling: the encoder's own peak is not set aside, and can run out of memory later."


def _overhead_notes(found: VllmPrediction) -> Iterator[str]:
    """What the overhead holds besides libraries and graphs: what the second model runner keeps, and free segments."""
    if found.rank.state_bytes:
        kept, seqs = format_bytes(found.rank.state_bytes), found.settings.serving.max_num_seqs
        yield (
            f"Model Runner V2, vLLM {found.version}'s default for this model: {kept} of the overhead is what it keeps "
            f"for {seqs} sequences (penalties, grammars); --max-num-seqs lowers it."
        )
    if found.rank.segment_bytes >= _NOTED_SEGMENT_BYTES:
        yield (
            f"{format_bytes(found.rank.segment_bytes)} of the overhead lies free in memory that PyTorch keeps from "
            f"loading the weights, which vLLM {found.version} counts as used."
        )


def _parallel_notes(spec: ModelSpec, found: VllmPrediction) -> tuple[str, ...]:
    """What several data-parallel groups mean for the figures."""
    groups = found.settings.serving.data_parallel_size
    if groups == 1:
        return ()
    each = f"{groups} data-parallel groups: each prints {found.kv_cache_tokens:,} tokens of its own KV cache"
    if spec.is_mixture:
        return (f"{each}; the buffers of their shared experts are derived, not measured.",)
    return (f"{each}.",)


def _vllm_limit(found: VllmPrediction, within: KvRange) -> str | None:
    if found.fits:
        return None
    if found.outcome == "rejected_seqs":
        sure = within.num_seqs[0] if within.num_seqs is not None else 0
        return (
            f"max_num_seqs {found.settings.serving.max_num_seqs:,} exceeds {found.num_blocks:,} state blocks "
            f"(--max-num-seqs {sure or found.num_blocks})"
        )
    if found.outcome == "oom_weights":
        lacking = found.rank.weight_bytes - found.rank.requested_bytes
        return f"the weights do not fit: {format_bytes(lacking)} short"
    missing = format_bytes(found.missing_bytes)
    if found.rank.lacking_bytes and found.rank.given_pool_bytes is not None:
        return f"no room for --kv-cache-memory-bytes: {missing} short"
    if found.outcome == "rejected_ctx" and found.largest_max_model_len:
        return f"longest sequence that fits: {found.largest_max_model_len:,} tokens"
    return f"no room for one sequence: {missing} short"


def _place_kvplan(spec: ModelSpec, gpu: GpuProfile, settings: ServingSettings, _version: str) -> Placement:
    device = EngineDevice(
        memory_bytes=gpu.memory_bytes,
        kind="cpu" if gpu.is_cpu else "cuda",
        compute_capability=compute_capability(gpu),
    )
    found = predict(spec, settings, device)
    groups = found.settings.serving.data_parallel_size
    deployment = SizedDeployment(
        gpu=gpu.id,
        engine="kvplan",
        settings=found.settings.serving,
        budget_bytes=found.budget_bytes,
        weight_bytes=found.weight_bytes,
        activation_peak_bytes=found.activation_bytes,
        overhead_bytes=found.overhead_bytes + found.graph_bytes,
        kv_pool_bytes=found.kv_pool_bytes,
        num_blocks=groups * found.num_blocks,
        block_size=found.settings.serving.block_size,
        kv_cache_tokens=groups * found.kv_cache_tokens,
        max_concurrency=groups * found.max_concurrency,
        fits=found.outcome == "ok",
        limit=_kvplan_limit(found),
        longest_context=found.largest_context or None if found.outcome == "rejected_ctx" else None,
        kv_range=_kvplan_range(found),
        graph_bytes=found.graph_bytes,
    )

    def sequences_of(num_tokens: int) -> int:
        return groups * (found.num_blocks // max(found.layout.blocks_for(num_tokens), 1))

    return Placement(deployment, sequences_of, _kvplan_notes(found))


def _kvplan_range(found: EnginePrediction) -> KvRange | None:
    """On a CPU the engine allocates what is predicted, to the byte; on a GPU nothing has been measured."""
    if found.settings.device.kind != "cpu":
        return None
    pool, tokens, requests = found.kv_pool_bytes, found.kv_cache_tokens, found.max_concurrency
    one = KvRange((pool, pool), (tokens, tokens), (requests, requests), ())
    return one.of_groups(found.settings.serving.data_parallel_size)


def _kvplan_notes(found: EnginePrediction) -> tuple[str, ...]:
    """What several engines mean for the figures, and what is not known beforehand of a GPU."""
    groups = found.settings.serving.data_parallel_size
    each = (
        () if groups == 1 else (f"{groups} engines: each holds {found.kv_cache_tokens:,} tokens of its own KV cache.",)
    )
    if found.settings.device.kind == "cpu":
        return each
    reserve = (
        f"{format_bytes(found.overhead_bytes, digits=0)} of the overhead is reserved for the driver and libraries. Not "
        "measured: the engine raises it at start-up where it finds more."
    )
    return (*each, reserve) if found.graphs is None else (*each, found.graphs.sentence(), reserve)


def _kvplan_limit(found: EnginePrediction) -> str | None:
    if found.outcome == "ok":
        return None
    if found.outcome == "rejected_ctx":
        return f"longest sequence that fits: {found.largest_context:,} tokens"
    needed = max(found.layout.blocks_for(1), 1)
    short = format_bytes(found.fixed_bytes + needed * found.block_bytes - found.budget_bytes)
    return f"{short} short of {'one block' if needed == 1 else f'the {needed:,} blocks of one token'}"


_OLDEST_OF_SGLANG: Final = (7, 5)
"""maybe_downgrade_dtype_for_legacy_gpu of load_model_utils.py (0.5.23): "SGLang only supports sm75 and above"."""


def _place_sglang(spec: ModelSpec, gpu: GpuProfile, settings: ServingSettings, version: str) -> Placement:
    """Nothing is profiled: what the static share leaves stands for the activations, and whole tokens are blocks."""
    if gpu.vendor != "nvidia":
        raise KvplanError(f"SGLang's memory is not modelled on {gpu.id}.", hint="use a GPU of NVIDIA, or --engine vllm")
    if compute_capability(gpu) < _OLDEST_OF_SGLANG:
        raise KvplanError(f"SGLang does not run on {gpu.id}.", hint="it needs compute capability 7.5, such as a t4's")
    found, release = predict_sglang(spec, gpu, settings, version=version), sglang_release(version)
    total, tokens = found.device_memory_bytes, found.kv_cache_tokens
    free = total - CONTEXT_BYTES
    budget = int(free * found.mem_fraction_static)
    chunk = settings.max_num_batched_tokens or release.chunked_prefill_tokens(listed_memory(gpu, settings))
    assert settings.max_model_len is not None
    filled = FilledSettings.of(
        settings,
        gpu_memory_utilization=found.mem_fraction_static,
        max_num_seqs=found.max_running_requests,
        block_size=1,
        max_model_len=settings.max_model_len,
        max_num_batched_tokens=chunk,
        device_memory_bytes=total,
        kv_cache_dtype=found.kv_cache_dtype,
    )
    limit = _sglang_limit(found, settings.max_model_len)
    deployment = SizedDeployment(
        gpu=gpu.id,
        engine=f"sglang@{release_text(release.version)}",
        settings=filled,
        budget_bytes=budget,
        weight_bytes=found.weight_bytes,
        activation_peak_bytes=free - budget,
        overhead_bytes=CONTEXT_BYTES + budget - found.weight_bytes - found.kv_pool_bytes,
        kv_pool_bytes=max(found.kv_pool_bytes, 0),
        num_blocks=tokens,
        block_size=1,
        kv_cache_tokens=tokens,
        max_concurrency=found.sequences_of(settings.max_model_len),
        fits=limit is None,
        limit=limit,
        longest_context=tokens if limit is not None and tokens and found.max_running_requests else None,
    )
    notes = (
        Caveat(
            "SGLang profiles nothing: what stands under activations is what mem_fraction_static leaves to them and to "
            "CUDA graphs. Too few start-ups were compared for an interval, and no speed is told."
        ),
        f"SGLang keeps {found.bytes_per_token:,} B for a token, and runs at most {found.max_running_requests:,} "
        "requests at once.",
    )
    return Placement(deployment, lambda num_tokens: int(found.sequences_of(num_tokens)), notes)


def _sglang_limit(found: SglangPrediction, context_tokens: int) -> str | None:
    if found.kv_pool_bytes <= 0:
        return f"the weights leave nothing of mem_fraction_static: {format_bytes(-found.kv_pool_bytes)} short"
    if not found.max_running_requests or not found.kv_cache_tokens:
        return "no room for one sequence"
    if found.kv_cache_tokens < context_tokens:
        return f"longest sequence that fits: {found.kv_cache_tokens:,} tokens"
    return None


PLACED_BY: Final[dict[str, Callable[[ModelSpec, GpuProfile, ServingSettings, str], Placement]]] = {
    "kvplan": _place_kvplan,
    "vllm": _place_vllm,
    "sglang": _place_sglang,
}
"""How each of ``catalog.engines.ENGINES`` places a model: model, GPU, settings, version."""
