"""The states of one sequence, from the pool into a cache of transformers and back.

part          in the pool                                       in transformers
conv          [kernel - 1, channels], the oldest token first    [1, channels, kernel], whose first column is unused
recurrent     [rows, columns]                                   [1, ...], as the class has it
"""

from __future__ import annotations

from typing import Any

import torch

from kvplan_engine.description.mixers import State
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.errors import EngineError
from kvplan_engine.models.kv_pool import KvPool


class StateCopies:
    """Copies the states of a model's layers. EngineError for a class that keeps several states in one layer."""

    def __init__(self, model: ModelDescription, layers: list[Any]) -> None:
        self._states: dict[int, State] = {}
        for index, layer in enumerate(model.layers):
            for mixer in layer.mixers:
                if isinstance(mixer, State):
                    self._states[index] = mixer
        for index in self._states:
            if getattr(layers[index], "number_of_states", 0) != 1:
                raise EngineError(f"layer {index} does not keep one state in transformers, as the engine describes it.")
        self._shapes: dict[int, torch.Size] = {}
        """Of each layer's recurrent state, as the class left it last: all sequences begin with one that is new."""

    def fill(self, layers: list[Any], kv: KvPool, blocks: torch.Tensor) -> None:
        """The states of the bundle ``blocks`` [width] into ``layers`` of a new cache."""
        for index, state in self._states.items():
            layer = layers[index]
            layer.has_previous_state[0] = True
            if state.conv_kernel > 1:
                rows = kv.state(index, "conv").load(blocks)
                self._set(layer, "conv", torch.nn.functional.pad(rows.t()[None], (1, 0)))
                layer.conv_kernel_size[0] = state.conv_kernel
            if state.recurrent_shape:
                rows = kv.state(index, "recurrent").load(blocks)
                self._set(layer, "recurrent", rows.reshape(self._shapes[index]))

    def take(self, layers: list[Any], kv: KvPool, blocks: torch.Tensor) -> None:
        """What ``layers`` hold after a forward pass into the bundle ``blocks`` [width]."""
        for index, state in self._states.items():
            layer = layers[index]
            if state.conv_kernel > 1:
                kept = layer.conv_states[0][0, :, 1 - state.conv_kernel :]
                kv.state(index, "conv").store(blocks, kept.t())
            if state.recurrent_shape:
                recurrent = layer.recurrent_states[0]
                self._shapes[index] = recurrent.shape
                kv.state(index, "recurrent").store(blocks, recurrent.reshape(-1, state.recurrent_shape[-1]))

    def _set(self, layer: Any, part: str, value: torch.Tensor) -> None:
        getattr(layer, f"{part}_states")[0] = value.contiguous()
        getattr(layer, f"is_{part}_states_initialized")[0] = True
        layer.device, layer.dtype = value.device, value.dtype
