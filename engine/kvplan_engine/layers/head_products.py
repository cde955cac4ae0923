"""Products of each head with a weight of its own: what takes latent attention into the latent space and out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kvplan_engine.kernels.cpu.library import STORAGE_CODES, CpuKernels
from kvplan_engine.kernels.cpu.packed import PackedHeads


class HeadProducts(Protocol):
    """``out[t, h] = x[t, h] @ weights[h].T`` for weights [heads, outputs, inputs].

    keeps_own: in a layout of its own, so that the weights it was made of may be freed.
    """

    @property
    def keeps_own(self) -> bool: ...

    def multiply(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """x [T, heads, inputs], out [T, heads, outputs]; rows and heads may be strided."""
        ...


class HeadProductsKind(Protocol):
    """One way to store such weights and multiply with them."""

    def takes(self, weights: torch.Tensor) -> bool:
        """Whether this kind serves ``weights`` [heads, outputs, inputs]."""
        ...

    def make(self, weights: torch.Tensor) -> HeadProducts:
        """The products, over a copy of ``weights`` or over a view of them."""
        ...


def make_head_products(kinds: Sequence[HeadProductsKind], weights: torch.Tensor) -> HeadProducts:
    """``weights`` by the first of ``kinds`` that takes them."""
    return next(kind for kind in kinds if kind.takes(weights)).make(weights)


class TorchHeads:
    """torch's batched product over the weights where they lie. Takes every dtype, on any device."""

    __slots__ = ("_transposed",)
    keeps_own = False

    def __init__(self, weights: torch.Tensor) -> None:
        self._transposed = weights.transpose(1, 2)

    @classmethod
    def takes(cls, weights: torch.Tensor) -> bool:
        """See HeadProductsKind.takes."""
        return True

    @classmethod
    def make(cls, weights: torch.Tensor) -> TorchHeads:
        """See HeadProductsKind.make. The weights stay where they are."""
        return cls(weights)

    def multiply(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """See HeadProducts.multiply."""
        out.copy_(torch.bmm(x.transpose(0, 1), self._transposed).transpose(0, 1))


@dataclass(frozen=True, slots=True)
class PanelHeads:
    """The kind: float32 and bfloat16 in panels, by ``kernels``."""

    kernels: CpuKernels

    def takes(self, weights: torch.Tensor) -> bool:
        """See HeadProductsKind.takes."""
        return weights.dtype in STORAGE_CODES

    def make(self, weights: torch.Tensor) -> PackedHeads:
        """See HeadProductsKind.make."""
        return PackedHeads(self.kernels, weights)
