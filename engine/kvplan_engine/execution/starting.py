"""Where an engine begins: device, model, and who divides the memory; with tensors, or counted without any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from kvplan_engine.checkpoints.families.multi_token import multi_token_model
from kvplan_engine.checkpoints.hub import resolve_source
from kvplan_engine.checkpoints.loaders import plan_held_weights, read_config
from kvplan_engine.checkpoints.quantised.held import refuse_held
from kvplan_engine.config import EngineConfig
from kvplan_engine.description.division import Rank, part_of
from kvplan_engine.device.allocation import loading_weights
from kvplan_engine.device.device import CpuDevice, Device, count_device, open_device, resolve_dtype
from kvplan_engine.errors import EngineError
from kvplan_engine.execution.capacity import CapacityCarver
from kvplan_engine.execution.carving import Carving, MemoryCarver
from kvplan_engine.execution.ranks.group import RankGroup
from kvplan_engine.execution.ranks.leading import LeadingCarver
from kvplan_engine.execution.self_check import choose_way
from kvplan_engine.memory.plan import Reserve
from kvplan_engine.models.counted_model import CountedModel, EngineModel
from kvplan_engine.models.known_parts import refuse_unknown_parts
from kvplan_engine.models.loaded_model import LoadedModel
from kvplan_engine.transformers_backend.model import RunnableModel, TransformersModel
from kvplan_engine.transformers_backend.ways import chosen_implementation


class Carver(Protocol):
    """Divides the memory that the weights leave."""

    def carve(self, config: EngineConfig) -> Carving:
        """OutOfDeviceMemory or ContextTooLong when that is not possible."""
        ...

    def settle(self, config: EngineConfig) -> Reserve:
        """What the next pool, if it is for ``config``, is going to leave free, or is refused with."""
        ...


@dataclass(frozen=True, slots=True)
class Started:
    """What stays while pools come and go. ranks: that share every layer with this one, None where none do."""

    device: Device
    model: EngineModel
    carver: Carver
    ranks: RankGroup | None = None


def start(config: EngineConfig, source: Any) -> Started:
    """``source`` loaded on the device that ``config`` names. OutOfDeviceMemory or EngineError."""
    if config.is_counted:
        return _count(config, source)
    return _load_divided(config, source) if config.num_ranks > 1 else _load(config, source)


def _load_divided(config: EngineConfig, source: Any) -> Started:
    """The first rank's part here, and the others' in processes of their own."""
    count, each = config.num_ranks, Rank.all_of(config.tensor_parallel_size, config.pipeline_parallel_size)
    # what cannot be divided is refused before a process is started
    whole = read_config(source, whole_experts=config.enable_expert_parallel)
    refuse_unknown_parts(whole)
    for rank in each:
        part_of(whole, rank)
    refuse_held(plan_held_weights(whole, source, config.load_format, config.quantization, config.seed))
    device = open_device(config.device, config.device_memory, count)
    kind = "cuda" if device.is_asynchronous else "cpu"
    if kind == "cuda" and torch.cuda.device_count() < count:
        raise EngineError(
            f"{count} ranks need as many GPUs, and there are {torch.cuda.device_count()}.",
            hint="lower tensor_parallel_size or pipeline_parallel_size, or use device='cpu'",
        )
    ranks = RankGroup(each)
    try:
        of_rank = replace(config, device=kind, device_memory=device.total_bytes if kind == "cpu" else None)
        collectives = ranks.load(of_rank, source, on_gpu=device.is_asynchronous)
        with loading_weights():
            model = LoadedModel(config, source, device, _dtype_on(device, config), collectives)
        ranks.loaded()
    except BaseException:
        ranks.close()
        raise
    return Started(device, model, LeadingCarver(model, device, ranks, collectives), ranks)


def _dtype_on(device: Device, config: EngineConfig) -> Callable[[str], str]:
    """The dtype that a model published in another one is computed in."""
    return lambda model_dtype: resolve_dtype(config.dtype, model_dtype, device)


def _load(config: EngineConfig, source: Any) -> Started:
    implementation = chosen_implementation(config, source)  # imports what it needs before memory is measured
    device = _open_partly_backed(config) if config.shares_layers else open_device(config.device, config.device_memory)
    if config.drafts_with_model:
        _refuse_drafter(config, source, device)
    dtype_of = _dtype_on(device, config)
    model: RunnableModel
    with loading_weights():
        if implementation == "native":
            model = LoadedModel(config, source, device, dtype_of)
        else:
            model = TransformersModel(config, source, device, dtype_of)
    if config.drafts_with_model and isinstance(model, LoadedModel):
        _add_drafter(model, config, source, device)
    if isinstance(model, TransformersModel):
        choose_way(model, config, device)
    return Started(device, model, MemoryCarver(model, device))


def _refuse_drafter(config: EngineConfig, source: Any, device: Device) -> None:
    """EngineError for a drafter that cannot run, before anything is loaded."""
    if device.is_asynchronous:
        raise EngineError(
            "a drafter with layers of its own runs on the CPU alone.", hint="use device='cpu', or method 'ngram'"
        )
    if config.drafts_with_own_layer:
        if str(source).endswith(".gguf"):
            raise EngineError(
                "no layer for multi-token prediction is read from a .gguf file.", hint="use method 'ngram'"
            )
        multi_token_model(read_config(source))


def _add_drafter(model: LoadedModel, config: EngineConfig, source: Any, device: Device) -> None:
    """Load what ``config`` names to draft, as it is stored. OutOfDeviceMemory or EngineError."""
    assert config.speculative_config is not None
    kept = ["device", "dtype", "load_format", "seed", "attention_backend"]
    name, target = config.speculative_config.model, None
    if config.drafts_with_own_layer:
        name, target = config.model, model
        kept += ["quantization", "group_size"]
    else:
        source = resolve_source(name, config.load_format).loadable
    own = EngineConfig(name, **{setting: getattr(config, setting) for setting in kept})
    with loading_weights():
        model.drafter = LoadedModel(own, source, device, _dtype_on(device, own), target=target)
    model.weight_bytes += model.drafter.weight_bytes


def _open_partly_backed(config: EngineConfig) -> Device:
    """A CPU's memory may be more than is free: most of the weights exist only in the account."""
    if config.device != "cpu" or config.device_memory is None:
        return open_device(config.device, config.device_memory)
    return CpuDevice(config.device_memory)


def _count(config: EngineConfig, source: Any) -> Started:
    device = count_device(config.device, config.device_memory)
    model = CountedModel(config, source, device)
    return Started(device, model, CapacityCarver(model, device))
