"""The product with a stored weight, and what the adapters of a step add to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import pointer
from dataclasses import dataclass

import torch

from kvplan_engine.adapters.library import SiteSlots
from kvplan_engine.adapters.step_rows import StepRows
from kvplan_engine.kernels.cpu.lora import rows_args, slots_args
from kvplan_engine.kernels.cpu.structures import PackedLinearArgs
from kvplan_engine.kernels.lora import Correct, LoraWeights
from kvplan_engine.layers.projection import Projection, ProjectionKind, StoredWeight, make_projection


class LoraLinear:
    """``inner``, corrected afterwards: nothing may follow the product in it."""

    __slots__ = ("_correct", "_inner", "_step", "_weights")
    activation = None
    layer_args = None

    def __init__(self, inner: Projection, weights: LoraWeights, step: StepRows, correct: Correct) -> None:
        assert inner.activation is None, "an activation is of the sum"
        self._inner, self._weights, self._step, self._correct = inner, weights, step, correct

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """See Projection.__call__."""
        self._inner(x, out)
        rows = self._step.among(x.shape[0])
        if rows is not None:
            self._correct(x, out, self._weights, rows)

    def rows(self, indices: torch.Tensor, out: torch.Tensor) -> None:
        """See Projection.rows; embeddings are not corrected."""
        self._inner.rows(indices, out)


class PackedLoraLinear:
    """A packed product of the CPU kernels, which correct it themselves before what follows it."""

    __slots__ = ("_inner", "_slots", "_step", "_weights", "activation", "layer_args")

    def __init__(self, inner: Projection, args: PackedLinearArgs, weights: LoraWeights, step: StepRows) -> None:
        """args: those of ``inner``, which it reads at each call."""
        self._inner, self._weights, self._step = inner, weights, step
        self.activation, self.layer_args = inner.activation, args
        self._slots = slots_args(weights)
        args.slots = pointer(self._slots)

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """See Projection.__call__."""
        rows = self._step.among(x.shape[0])
        self.layer_args.corrected = None if rows is None else pointer(rows_args(rows))
        self._inner(x, out)

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

    def make(self, stored: StoredWeight) -> LoraLinear | PackedLoraLinear:
        """See ProjectionKind.make."""
        inner, weights = make_projection(self.kinds, stored), self.sites[stored.name].weights
        args = inner.layer_args
        if args is None or args.next:  # the kernels correct no weight of several formats
            return LoraLinear(inner, weights, self.step, self.correct)
        return PackedLoraLinear(inner, args, weights, self.step)
