"""The product with a stored weight, and what the adapters of a step add to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kvplan_engine.adapters.slots import SiteSlots
from kvplan_engine.adapters.step_rows import Rows, StepRows
from kvplan_engine.layers.projection import Projection, ProjectionKind, StoredWeight, make_projection


class LoraLinear:
    """``inner``, corrected. The activation that follows is of the sum, so it is no part of the product."""

    __slots__ = ("_inner", "_slots", "_step")
    activation = None
    layer_args = None

    def __init__(self, inner: Projection, slots: SiteSlots, step: StepRows) -> None:
        self._inner, self._slots, self._step = inner, slots, step

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """See Projection.__call__."""
        self._inner(x, out)
        for group in self._step.groups:
            self._correct(x, out, group.slot, group.rows)

    def _correct(self, x: torch.Tensor, out: torch.Tensor, slot: int, rows: Rows) -> None:
        slots, first = self._slots, 0
        taken = x[rows]
        inner = taken @ slots.down[slot].t()
        for segment, outputs in enumerate(slots.site.segments):
            columns = slice(first, first + outputs)
            narrow = inner[:, segment * slots.rank : (segment + 1) * slots.rank]
            correction = narrow @ slots.up[slot, columns].t()
            if isinstance(rows, slice):
                out[rows, columns] += correction
            else:
                out[:, columns].index_add_(0, rows, correction)
            first += outputs

    def rows(self, indices: torch.Tensor, out: torch.Tensor) -> None:
        """See Projection.rows; embeddings are not corrected."""
        self._inner.rows(indices, out)


@dataclass(frozen=True)
class LoraProjections:
    """The kind: products that have slots, stored by the first of ``kinds`` that takes them."""

    kinds: Sequence[ProjectionKind]
    sites: Mapping[str, SiteSlots]
    step: StepRows

    def takes(self, stored: StoredWeight) -> bool:
        """See ProjectionKind.takes."""
        return stored.name in self.sites

    def make(self, stored: StoredWeight) -> LoraLinear:
        """See ProjectionKind.make."""
        stored.activation = None
        return LoraLinear(make_projection(self.kinds, stored), self.sites[stored.name], self.step)
