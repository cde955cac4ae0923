"""What an engine needs to know of its model, and a model that is only counted."""

from __future__ import annotations

from typing import Any, Protocol

from kvplan_engine.checkpoints.loaders import read_config
from kvplan_engine.checkpoints.weights import num_parameters
from kvplan_engine.config import EngineConfig
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.device.device import Device, resolve_dtype
from kvplan_engine.memory.breakdown import DTYPE_BYTES


class EngineModel(Protocol):
    """A model as everything but the steps sees it. is_dummy: its answers mean nothing.

    dtype: of weights and activations. weight_fingerprint: differs where weights differ.
    """

    config: ModelDescription
    dtype: str
    weight_bytes: int
    weight_fingerprint: bytes
    is_dummy: bool


class CountedModel:
    """A model without weights: its config, and the bytes that they would take.

    EngineError when there is no such model, or when its config is not one the engine reads.
    """

    is_dummy = True
    weight_fingerprint = b"counted"

    def __init__(self, config: EngineConfig, source: Any, device: Device) -> None:
        self.config: ModelDescription = read_config(source)
        self.dtype = resolve_dtype(config.dtype, self.config.dtype, device)
        counted_bytes = num_parameters(self.config) * DTYPE_BYTES[self.dtype]
        self.weight_bytes = counted_bytes if config.weight_bytes is None else config.weight_bytes
