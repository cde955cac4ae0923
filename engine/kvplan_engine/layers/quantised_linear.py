"""Products with quantised weights: our kernel over panels on the CPU, plain torch everywhere else."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvplan_engine.kernels.cpu.library import CpuKernels
from kvplan_engine.kernels.cpu.packed import packs_activation
from kvplan_engine.kernels.cpu.quantised import PackedQuantised, stacked_args
from kvplan_engine.kernels.cpu.structures import PackedLinearArgs
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.products.quantised import CudaQuantised
from kvplan_engine.kernels.cuda.step_memory import StepMemory
from kvplan_engine.kernels.quantised_weight import QuantisedWeight, rounded_inputs
from kvplan_engine.layers.projection import Projection, StoredWeight

_WIDENED_BYTES = 16 * 1024**2
"""The most that plain torch widens at a time, which the overhead kept back covers."""


class WidenedRowsLinear:
    """The product in plain torch: some rows of the weight at a time are widened. The kernel's definition."""

    __slots__ = ("_bias", "_weight")
    activation = None
    layer_args = None

    def __init__(self, weight: QuantisedWeight, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        count = max(1, _WIDENED_BYTES // (4 * self._weight.num_inputs))
        wide_x = rounded_inputs(x, self._weight).float()
        for first in range(0, self._weight.num_outputs, count):
            last = min(first + count, self._weight.num_outputs)
            rows = self._weight.with_rows(lambda part, first=first, last=last: part[first:last])  # type: ignore[misc]
            result = wide_x @ rows.dequantised().t()
            out[:, first:last] = result if self._bias is None else result + self._bias[first:last]

    def rows(self, indices: torch.Tensor, out: torch.Tensor) -> None:
        """See Projection.rows."""
        out.copy_(self._weight.with_rows(lambda part: part[indices]).dequantised())


class StackedLinear:
    """Several weights one below the other, where the rows of one weight are stored in several formats."""

    __slots__ = ("_parts",)
    activation = None
    layer_args: PackedLinearArgs | None = None

    def __init__(self, parts: list[tuple[int, Projection]]) -> None:
        """parts: the rows of each, and its product."""
        self._parts = parts

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        first = 0
        for count, part in self._parts:
            part(x, out[:, first : first + count])
            first += count

    def rows(self, indices: torch.Tensor, out: torch.Tensor) -> None:
        """Not needed: an embedding is one tensor."""
        raise TypeError("the rows of a stacked weight are not read back")


class StackedPanels(StackedLinear):
    """The same in panels, which the call over all layers takes too. Nothing follows the product."""

    __slots__ = ("layer_args",)

    def __init__(self, parts: list[PackedQuantised]) -> None:
        super().__init__([(part.num_result_columns, part) for part in parts])
        self.layer_args = stacked_args(parts)


@dataclass(frozen=True, slots=True)
class QuantisedPanels:
    """The kind: quantised weights in panels, by ``kernels``."""

    kernels: CpuKernels

    def takes(self, stored: StoredWeight) -> bool:
        """See ProjectionKind.takes."""
        return stored.is_quantised

    def make(self, stored: StoredWeight) -> Projection:
        """See ProjectionKind.make."""
        parts = stored.take_quantised()
        follows = len(parts) == 1 and packs_activation(self.kernels, stored.activation, stored.weight.shape[0])
        activation = stored.activation if follows else None
        made = [PackedQuantised(self.kernels, part, bias, activation) for part, bias in with_biases(parts, stored.bias)]
        return made[0] if len(made) == 1 else StackedPanels(made)


class WidenedRows:
    """The kind: quantised weights in plain torch, on any device."""

    @classmethod
    def takes(cls, stored: StoredWeight) -> bool:
        """See ProjectionKind.takes."""
        return stored.is_quantised

    @classmethod
    def make(cls, stored: StoredWeight) -> Projection:
        """See ProjectionKind.make."""
        parts = stored.take_quantised()
        made: list[tuple[int, Projection]] = [
            (part.num_outputs, WidenedRowsLinear(part, bias)) for part, bias in with_biases(parts, stored.bias)
        ]
        return made[0][1] if len(made) == 1 else StackedLinear(made)


def with_biases(
    parts: list[QuantisedWeight], bias: torch.Tensor | None
) -> list[tuple[QuantisedWeight, torch.Tensor | None]]:
    """Each part with its piece of ``bias``."""
    if bias is None:
        return [(part, None) for part in parts]
    pieces = bias.split([part.num_outputs for part in parts])
    return list(zip(parts, pieces, strict=True))


# Quantised weights by the CUDA kernels, over the codes as they are held.


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
            made.append((part.num_outputs, kernels))
        return made[0][1] if len(made) == 1 else StackedLinear(made)
