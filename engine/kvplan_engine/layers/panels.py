"""Our own product over a weight that was packed once into panels.

Dense ones by csrc/cpu/products/packed/packed_linear.cpp, quantised ones by products/quantised/quantised_linear.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvplan_engine.kernels.cpu.library import STORAGE_CODES, CpuKernels
from kvplan_engine.kernels.cpu.packed import PackedWeight, packs_activation
from kvplan_engine.kernels.cpu.quantised import PackedQuantised
from kvplan_engine.kernels.cpu.step_args import PackedLinearArgs
from kvplan_engine.layers.projection import StoredWeight


class PanelLinear:
    """The product with the activation that follows it. Panels can be read back, so an embedding is packed too."""

    __slots__ = ("_packed", "activation")

    def __init__(self, packed: PackedWeight | PackedQuantised) -> None:
        self._packed = packed
        self.activation = packed.activation

    @property
    def layer_args(self) -> PackedLinearArgs:
        return self._packed.args

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        self._packed.multiply(x, out)

    def rows(self, indices: torch.Tensor, out: torch.Tensor) -> None:
        """See Projection.rows."""
        self._packed.rows(indices, out)


@dataclass(frozen=True, slots=True)
class Panels:
    """The kind: float32 and bfloat16 in panels, by ``kernels``."""

    kernels: CpuKernels

    def takes(self, stored: StoredWeight) -> bool:
        """See ProjectionKind.takes."""
        return stored.weight.dtype in STORAGE_CODES

    def make(self, stored: StoredWeight) -> PanelLinear:
        """See ProjectionKind.make."""
        follows = packs_activation(self.kernels, stored.activation, stored.weight.shape[0])
        activation = stored.activation if follows else None
        return PanelLinear(PackedWeight(self.kernels, stored.take(), stored.bias, activation))
