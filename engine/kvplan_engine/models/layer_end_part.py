"""What ends a layer behind its blocks: its own input, and a factor of the residual stream (Gemma 4)."""

from __future__ import annotations

from copy import copy

import torch

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.model import Layer, LayerInputs, ModelDescription
from kvplan_engine.layers.norm import Norm
from kvplan_engine.layers.projection import StoredWeight, make_projection
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.part_kernels import PartKernels
from kvplan_engine.models.residual_stream import ResidualStream
from kvplan_engine.models.step_batch import StepBatch

# Inputs of each layer's own, made of a second embedding and of the first (Gemma 4).


class LayerInputsPart:
    """Fills the workspace's ``layer_inputs`` [T, layers x size], once in a step."""

    def __init__(self, inputs: LayerInputs, model: ModelDescription, weights: Weights, kernels: PartKernels) -> None:
        self._size, self._hidden_size = inputs.size, model.hidden_size
        self._table = weights["layer_inputs.embedding.weight"]
        self._projection = make_projection(kernels.projections, StoredWeight(weights, "layer_inputs.projection"))
        self._norm = Norm(weights, "layer_inputs.norm", model.norm.kind, model.norm.eps, kernels.ops)

    def __call__(self, batch: StepBatch, embedded: torch.Tensor, workspace: Workspace) -> None:
        """embedded [T, H]: the residual stream before the first layer, which stays as it is."""
        inputs = workspace["layer_inputs"][: embedded.shape[0]]
        torch.index_select(self._table, 0, batch.token_ids, out=inputs)
        inputs.mul_(float(torch.tensor(self._size**0.5, dtype=inputs.dtype)))  # rounded as the published code does
        (projected,) = workspace.scratch((inputs.shape[0], inputs.shape[1]))
        self._projection(embedded, projected)
        projected.mul_(self._hidden_size**-0.5)
        by_layer = projected.view(inputs.shape[0], -1, self._size)
        self._norm(by_layer, by_layer)
        inputs.add_(projected).mul_(2.0**-0.5)


class LayerEndPart:
    """stream = factor * (stream + norm(output(gelu(gate(stream)) * input))), in the residual stream itself."""

    def __init__(self, layer: Layer, weights: Weights, index: int, kernels: PartKernels) -> None:
        assert layer.end is not None
        name, self._index, self._size = f"layers.{index}", index, layer.end.input_size
        self._factor = float(weights[f"{name}.layer_scale"])
        if self._size:
            self._gate, self._output = (
                make_projection(kernels.projections, StoredWeight(weights, f"{name}.{part}"))
                for part in ("input_gate", "input_output")
            )
            self._norm = Norm(weights, f"{name}.input_norm", layer.norms.kind, layer.norms.eps, kernels.ops)

    def at(self, index: int) -> LayerEndPart:
        """The same weights with the input of layer ``index``."""
        twin = copy(self)
        twin._index = index
        return twin

    def __call__(self, stream: ResidualStream, workspace: Workspace) -> None:
        """``stream.hidden`` in place; ``stream.delta`` is overwritten."""
        if self._size:
            self._add_input(stream, workspace)
        stream.hidden.mul_(self._factor)

    def _add_input(self, stream: ResidualStream, workspace: Workspace) -> None:
        hidden, delta = stream.hidden, stream.delta
        gated, inputs = workspace.scratch(*(((hidden.shape[0], self._size),) * 2))
        own = workspace["layer_inputs"].unflatten(1, (-1, self._size))[:, self._index]
        if stream.rows is None:
            inputs = own[: hidden.shape[0]]
        else:
            torch.index_select(own, 0, stream.rows, out=inputs)
        self._gate(hidden, gated)
        torch.ops.aten.gelu_(gated, approximate="tanh")
        gated.mul_(inputs)
        self._output(gated, delta)
        self._norm(delta, delta)
        hidden.add_(delta)
