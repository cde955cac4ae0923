"""One model on one kind of GPU: what fits, under vLLM's start-up, SGLang's or kvplan's own engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kvplan.catalog.devices.device_support import last_release_hint, missing_kernels_note
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.devices.slices import slice_note
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.caveats import Caveat
from kvplan.errors import UsageError
from kvplan.estimate.adapters import engine_slot_bytes, vllm_slot_bytes
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.placed.kvplan import place_kvplan
from kvplan.estimate.placed.placement import Placement
from kvplan.estimate.placed.sglang import place_sglang
from kvplan.estimate.placed.vllm import as_placed, place_vllm
from kvplan.estimate.speed.steps.collectives import bridge_note, network_note
from kvplan.estimate.vllm.learned import LearnedStart, predict_as_learned
from kvplan.settings import KNOBS, FilledSettings, ServingSettings
from kvplan.units import format_bytes


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
        placement = as_placed(spec, gpu, found.prediction, found.explained)
        placement = replace(placement, notes=(*found.notes, *placement.notes))
    filled = placement.deployment.settings
    layout = ParallelLayout.of(filled)
    links = filter(None, (bridge_note(gpu, layout), network_note(gpu, layout)))
    missing = missing_kernels_note(gpu, engine.version) if engine.name == "vllm" else None
    links = filter(None, (*links, missing and Caveat(f"{missing} {last_release_hint(gpu)}.")))
    notes = (*placement.notes, *_lora_notes(spec, filled, engine), *_stand_in_notes(gpu, settings), *links)
    return replace(placement, notes=notes)


_OF_VLLM: Final = (
    "reserved_bytes",
    "kv_cache_memory_bytes",
    "cpu_offload_gb",
    "limit_mm_per_prompt",
    "skip_mm_profiling",
    "warm_start",
    "expandable_segments",
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


def _lora_notes(spec: ModelSpec, settings: FilledSettings, engine: EngineChoice) -> tuple[str, ...]:
    """What the slots of adapters take, and what is not known of them."""
    slots = settings.lora_slots
    if slots is None:
        return ()
    if engine.name == "vllm":
        twice = vllm_release(engine.version).heads_as_embeddings
        taken = vllm_slot_bytes(spec, range(spec.num_layers), settings, settings.dtype, twice)
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


PLACED_BY: Final[dict[str, Callable[[ModelSpec, GpuProfile, ServingSettings, str], Placement]]] = {
    "kvplan": place_kvplan,
    "vllm": place_vllm,
    "sglang": place_sglang,
}
"""How each of ``catalog.engines.ENGINES`` places a model: model, GPU, settings, version."""
