"""The product with a stored weight, and what the adapters of a step add to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kvplan_engine.adapters.slots import SiteSlots
from kvplan_engine.adapters.step_rows import StepRows
from kvplan_engine.kernels.lora import Correct, LoraWeights
from kvplan_engine.layers.projection import Projection, ProjectionKind, StoredWeight, make_projection


class LoraLinear:
    """``inner``, corrected. The activation that follows is of the sum, so it is no part of the product."""

    __slots__ = ("_correct", "_inner", "_step", "_weights")
    activation = None
    layer_args = None

    def __init__(self, inner: Projection, weights: LoraWeights, step: StepRows, correct: Correct) -> None:
        self._inner, self._weights, self._step, self._correct = inner, weights, step, correct

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """See Projection.__call__."""
        self._inner(x, out)
        if self._step.rows is not None:
            self._correct(x, out, self._weights, self._step.rows)

    def rows(self, indices: torch.Tensor, out: torch.Tensor) -> None:
        """See Projection.rows; embeddings are not corrected."""
        self._inner.rows(indices, out)


@dataclass(frozen=True)
class LoraProjections:
    """The kind: products that have slots, stored by the first of ``kinds`` that takes them."""

    kinds: Sequence[ProjectionKind]
    sites: Mapping[str, SiteSlots]
    step: StepRows
    correct: Correct

    def takes(self, stored: StoredWeight) -> bool:
        """See ProjectionKind.takes."""
        return stored.name in self.sites

    def make(self, stored: StoredWeight) -> LoraLinear:
        """See ProjectionKind.make."""
        stored.activation = None
        inner = make_projection(self.kinds, stored)
        return LoraLinear(inner, self.sites[stored.name].weights, self.step, self.correct)
