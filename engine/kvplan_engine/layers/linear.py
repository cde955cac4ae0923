"""A matrix product with the weights, into a buffer that exists already."""

from __future__ import annotations

import torch


class Linear:
    """``out = x @ weight.T + bias`` for weight [num_outputs, num_inputs]."""

    __slots__ = ("_bias", "_transposed")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._transposed = weight.t()
        self._bias = bias

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """x [T, num_inputs] (rows may be strided), out [T, num_outputs]."""
        if self._bias is None:
            torch.mm(x, self._transposed, out=out)
        else:
            torch.addmm(self._bias, x, self._transposed, out=out)
