"""Where an engine begins: device, model, and who divides the memory; with tensors, or counted without any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from kvplan_engine.config import EngineConfig
from kvplan_engine.device.allocation import allocating
from kvplan_engine.device.counted import count_device
from kvplan_engine.device.device import CpuDevice, Device, open_device, resolve_dtype
from kvplan_engine.execution.capacity import CapacityCarver
from kvplan_engine.execution.carving import Carving, MemoryCarver
from kvplan_engine.execution.self_check import choose_way
from kvplan_engine.models.counted_model import CountedModel, EngineModel
from kvplan_engine.models.loaded_model import LoadedModel
from kvplan_engine.transformers_backend.choice import chosen_implementation
from kvplan_engine.transformers_backend.model import RunnableModel, TransformersModel


class Carver(Protocol):
    """Divides the memory that the weights leave."""

    def carve(self, config: EngineConfig) -> Carving:
        """OutOfDeviceMemory or ContextTooLong when that is not possible."""
        ...


@dataclass(frozen=True, slots=True)
class Started:
    """What stays while pools come and go."""

    device: Device
    model: EngineModel
    carver: Carver


def start(config: EngineConfig, source: Any) -> Started:
    """``source`` loaded on the device that ``config`` names. OutOfDeviceMemory or EngineError."""
    return _count(config, source) if config.is_counted else _load(config, source)


def _load(config: EngineConfig, source: Any) -> Started:
    implementation = chosen_implementation(config, source)  # imports what it needs before memory is measured
    device = _open_partly_backed(config) if config.shares_layers else open_device(config.device, config.device_memory)

    def dtype_of(model_dtype: str) -> str:
        return resolve_dtype(config.dtype, model_dtype, device)

    model: RunnableModel
    with allocating("weights"):
        if implementation == "native":
            model = LoadedModel(config, source, device, dtype_of)
        else:
            model = TransformersModel(config, source, device, dtype_of)
    if isinstance(model, TransformersModel):
        choose_way(model, config, device)
    return Started(device, model, MemoryCarver(model, device))


def _open_partly_backed(config: EngineConfig) -> Device:
    """A CPU's memory may be more than is free: most of the weights exist only in the account."""
    if config.device != "cpu" or config.device_memory is None:
        return open_device(config.device, config.device_memory)
    return CpuDevice(config.device_memory)


def _count(config: EngineConfig, source: Any) -> Started:
    device = count_device(config.device, config.device_memory)
    model = CountedModel(config, source, device)
    return Started(device, model, CapacityCarver(model, device))
