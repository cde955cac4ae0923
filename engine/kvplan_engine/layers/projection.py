"""Matrix products with the weights: what each way to store a weight offers, and how one is chosen for each weight.

A ``ProjectionKind`` is one way: it takes a weight as the checkpoint gave it, keeps it in a layout of its own, and
multiplies with it. A device lists its kinds, best first (``models/device_kernels.py``); ``docs/how-to/
add-a-weight-format.md`` walks through adding one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch

from kvplan_engine.checkpoints.quantised.reader import shape_of, take_parts
from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.kernels.cpu.structures import PackedLinearArgs
from kvplan_engine.kernels.quantised_weight import QuantisedWeight


class Projection(Protocol):
    """``out = x @ weight.T + bias`` for weight [num_outputs, num_inputs], and ``activation`` of it.

    activation: what is part of the product, by the name it has in ``layers.activation``; a gated one halves the
    outputs. None where the caller has to apply it. layer_args: the product as the CPU kernels' call for all layers
    takes it; None where they do not have it.
    """

    @property
    def activation(self) -> str | None: ...

    @property
    def layer_args(self) -> PackedLinearArgs | None: ...

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """x [T, num_inputs] (rows may be strided), out [T, num_outputs]."""
        ...

    def rows(self, indices: torch.Tensor, out: torch.Tensor) -> None:
        """out [T, num_inputs] = weight[indices] for indices [T] int64; only if the weight is the embedding too."""
        ...


class FusedProjection(ABC):
    """A ``Projection`` that can also do in the same launch what follows a product of few rows.

    Its ``activation`` is None: whether one follows is decided anew in every step. follows: the activation that
    ``activated`` applies, None where there is none.
    """

    follows: str | None

    @abstractmethod
    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """See Projection.__call__."""

    @abstractmethod
    def takes(self, x: torch.Tensor) -> bool:
        """Whether ``x`` may be given to ``activated`` and ``added``."""

    @abstractmethod
    def activated(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """out [T, num_outputs], half of these where it is gated, = ``follows`` of the product."""

    @abstractmethod
    def added(self, x: torch.Tensor, residual: torch.Tensor) -> None:
        """residual [T, num_outputs] += the product."""


def add_or_store(
    projection: Projection | FusedProjection, x: torch.Tensor, delta: torch.Tensor, residual: torch.Tensor | None
) -> bool:
    """The product of ``x``, added to ``residual`` where that takes no launch of its own, else into ``delta``.

    Whether it was added; residual: None where it may not be.
    """
    if residual is not None and isinstance(projection, FusedProjection) and projection.takes(x):
        projection.added(x, residual)
        return True
    projection(x, delta)
    return False


class StoredWeight:
    """One projection's weight among a model's ``weights``, and what is wanted of it.

    name: the parameter's, without its leaf. weight [num_outputs, num_inputs]; bias [num_outputs] or None. activation:
    what follows the product, or None. is_embedding: the weight is the embedding too, so that its rows must be read
    back. only_rows: nothing is multiplied with it. is_quantised: only the weight's shape is to be had, and
    ``take_quantised``.
    """

    def __init__(
        self,
        weights: Weights,
        name: str,
        *,
        activation: str | None = None,
        is_embedding: bool = False,
        only_rows: bool = False,
    ) -> None:
        self._weights = weights
        self.name = name
        self._key = name if name in weights else f"{name}.weight"
        shape = shape_of(weights, name)
        self.is_quantised = shape is not None
        self.weight = weights[self._key] if shape is None else torch.empty(shape, dtype=torch.uint8, device="meta")
        self.bias = weights.get(f"{name}.bias")
        self.activation = activation
        self.is_embedding = is_embedding
        self.only_rows = only_rows

    @classmethod
    def quantised(cls, weights: Weights, name: str, *, is_embedding: bool = False) -> StoredWeight | None:
        """The weight if it is quantised, otherwise None."""
        return None if shape_of(weights, name) is None else cls(weights, name, is_embedding=is_embedding)

    def take(self) -> torch.Tensor:
        """The weight, removed from the model's: for a kind that keeps another layout, so that it is not held twice."""
        return self._weights.pop(self._key)

    def take_quantised(self) -> list[QuantisedWeight]:
        """The same of a quantised weight: one, or several whose rows follow one another."""
        return take_parts(self._weights, self.name)


class ProjectionKind(Protocol):
    """One way to store a weight and multiply with it."""

    def takes(self, stored: StoredWeight) -> bool:
        """Whether this kind runs here and serves ``stored`` as it is wanted."""
        ...

    def make(self, stored: StoredWeight) -> Projection:
        """The projection; takes the weight out of the model's where it keeps another layout."""
        ...


def make_projection(kinds: Sequence[ProjectionKind], stored: StoredWeight) -> Projection:
    """``stored`` by the first of ``kinds`` that takes it."""
    return next(kind for kind in kinds if kind.takes(stored)).make(stored)
