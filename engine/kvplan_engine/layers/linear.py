"""The product over a weight as it was published, by torch."""

from __future__ import annotations

import torch

from kvplan_engine.layers.projection import StoredWeight


class Linear:
    """The device's BLAS: cuBLAS on a GPU, MKL where no kernel of ours runs on a CPU. Takes every weight."""

    __slots__ = ("_bias", "_transposed", "_weight")
    activation = None
    layer_args = None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight, self._transposed, self._bias = weight, weight.t(), bias

    @classmethod
    def takes(cls, stored: StoredWeight) -> bool:
        """See ProjectionKind.takes."""
        return True

    @classmethod
    def make(cls, stored: StoredWeight) -> Linear:
        """See ProjectionKind.make. The weight stays where it is."""
        return cls(stored.weight, stored.bias)

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        if self._bias is None:
            torch.mm(x, self._transposed, out=out)
        else:
            torch.addmm(self._bias, x, self._transposed, out=out)

    def rows(self, indices: torch.Tensor, out: torch.Tensor) -> None:
        """See Projection.rows."""
        torch.index_select(self._weight, 0, indices, out=out)
