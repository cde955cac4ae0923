"""Inputs of each layer's own, made of a second embedding and of the first (Gemma 4)."""

from __future__ import annotations

import torch

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.model import LayerInputs, ModelDescription
from kvplan_engine.layers.norm import Norm
from kvplan_engine.layers.projection import StoredWeight, make_projection
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.part_kernels import PartKernels
from kvplan_engine.models.step_batch import StepBatch


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
