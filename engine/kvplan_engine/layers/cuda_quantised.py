"""Quantised weights by the CUDA kernels, over the codes as they are held."""

from __future__ import annotations

import torch

from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.products.quantised import CudaQuantised
from kvplan_engine.kernels.cuda.step_memory import StepMemory
from kvplan_engine.layers.projection import Projection, StoredWeight
from kvplan_engine.layers.quantised_linear import StackedLinear, WidenedRowsLinear, with_biases


class CudaQuantisedLinear:
    """The product with one weight."""

    __slots__ = ("_kernels",)
    activation = None
    layer_args = None

    def __init__(self, kernels: CudaQuantised) -> None:
        self._kernels = kernels

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        self._kernels.multiply(x, out)

    def rows(self, indices: torch.Tensor, out: torch.Tensor) -> None:
        """See Projection.rows."""
        self._kernels.rows(indices, out)


class CudaQuantisedWeights:
    """The kind: quantised weights by csrc/cuda, for activations of ``scalar``; all share the memory to widen in."""

    def __init__(self, runtime: CudaRuntime, memory: StepMemory, scalar: torch.dtype) -> None:
        self._runtime, self._memory, self._scalar = runtime, memory, scalar

    @classmethod
    def takes(cls, stored: StoredWeight) -> bool:
        """See ProjectionKind.takes."""
        return stored.is_quantised

    def make(self, stored: StoredWeight) -> Projection:
        """See ProjectionKind.make. The codes stay where they are."""
        made: list[tuple[int, Projection]] = []
        for part, bias in with_biases(stored.take_quantised(), stored.bias):
            if part.scales.dtype is torch.uint8:  # powers of two in bytes, which these kernels do not read
                made.append((part.num_outputs, WidenedRowsLinear(part, bias)))
                continue
            kernels = CudaQuantised(self._runtime, self._memory, part, bias, self._scalar)
            made.append((part.num_outputs, CudaQuantisedLinear(kernels)))
        return made[0][1] if len(made) == 1 else StackedLinear(made)
