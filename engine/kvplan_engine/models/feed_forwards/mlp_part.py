"""One layer's MLP."""

from __future__ import annotations

import torch

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.feed_forward import Mlp
from kvplan_engine.layers.activation import MlpActivation
from kvplan_engine.layers.projection import FusedProjection, StoredWeight, add_or_store, make_projection
from kvplan_engine.models.part_kernels import PartKernels
from kvplan_engine.models.step_space import StepSpace


class MlpPart:
    """Up (and gate), activation, down, of layer ``index``; name: what its parameters begin with, None: the layer's."""

    launches_each_expert = False

    def __init__(
        self, mlp: Mlp, weights: Weights, index: int, kernels: PartKernels, *, name: str | None = None
    ) -> None:
        name = f"layers.{index}" if name is None else name
        self._size = mlp.size
        self._activation = MlpActivation(mlp, weights, f"{name}.activation", kernels.ops)
        stored = StoredWeight(weights, f"{name}.up", activation=self._activation.name)
        self.up = make_projection(kernels.projections, stored)
        self.down = make_projection(kernels.projections, StoredWeight(weights, f"{name}.down"))
        is_halved = mlp.gated and self.up.activation is not None
        self._columns = mlp.size * (2 if mlp.gated and not is_halved else 1)

    def __call__(
        self, normed: torch.Tensor, step: StepSpace, delta: torch.Tensor, residual: torch.Tensor | None = None
    ) -> bool:
        """From ``normed`` [T, H] by way of the scratch buffer; ``delta``, ``residual`` [T, H]: see add_or_store."""
        return add_or_store(self.down, self._activated(normed, step), delta, residual)

    def _activated(self, normed: torch.Tensor, step: StepSpace) -> torch.Tensor:
        """[T, F] in the scratch buffer."""
        up = self.up
        if isinstance(up, FusedProjection) and up.follows is not None and up.takes(normed):
            (active,) = step.workspace.scratch((normed.shape[0], self._size))
            up.activated(normed, active)
            return active
        (inner,) = step.workspace.scratch((normed.shape[0], self._columns))
        up(normed, inner)
        return inner if up.activation is not None else self._activation(inner)
