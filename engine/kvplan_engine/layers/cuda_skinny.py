"""Few rows by our own CUDA kernel over the weight as published, with what follows the product; more by torch."""

from __future__ import annotations

import torch

from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.products.skinny import ACTIVATIONS, CudaSkinny, multiplies_few_rows
from kvplan_engine.layers.linear import Linear
from kvplan_engine.layers.projection import FusedProjection, StoredWeight


class SkinnyLinear(FusedProjection):
    """The product with one weight."""

    __slots__ = ("_bias", "_kernels", "_linear", "_weight", "follows")
    activation = None
    layer_args = None

    def __init__(
        self, kernels: CudaSkinny, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None
    ) -> None:
        self._kernels, self._weight, self._bias = kernels, weight, bias
        self._linear = Linear(weight, bias)
        self.follows = activation if activation in ACTIVATIONS else None

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        if self.takes(x):
            self._kernels.multiply(x, self._weight, self._bias, out)
        else:
            self._linear(x, out)

    def takes(self, x: torch.Tensor) -> bool:
        """See FusedProjection.takes."""
        return self._kernels.takes(x)

    def activated(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """See FusedProjection.activated."""
        self._kernels.multiply(x, self._weight, self._bias, out, activation=self.follows)

    def added(self, x: torch.Tensor, residual: torch.Tensor) -> None:
        """See FusedProjection.added."""
        self._kernels.multiply(x, self._weight, self._bias, residual, residual=residual)

    def rows(self, indices: torch.Tensor, out: torch.Tensor) -> None:
        """See Projection.rows."""
        self._linear.rows(indices, out)


class SkinnyWeights:
    """The kind: float16 and bfloat16 on compute capability 8.0 and newer. The weight stays where it is."""

    def __init__(self, runtime: CudaRuntime) -> None:
        self._kernels = CudaSkinny(runtime)

    def takes(self, stored: StoredWeight) -> bool:
        """See ProjectionKind.takes."""
        if stored.is_quantised or stored.only_rows:
            return False
        return multiplies_few_rows(stored.weight, self._kernels.runtime.properties)

    def make(self, stored: StoredWeight) -> SkinnyLinear:
        """See ProjectionKind.make."""
        return SkinnyLinear(self._kernels, stored.weight, stored.bias, stored.activation)
