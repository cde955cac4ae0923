"""The normalisations, each alone or fused with the residual addition before it."""

from __future__ import annotations

from functools import cache

import torch

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.norms import NormKind
from kvplan_engine.kernels.cpu.library import STORAGE_CODES
from kvplan_engine.kernels.cpu.structures import NormArgs
from kvplan_engine.kernels.interface import Ops


class Norm:
    """RMSNorm or LayerNorm; ``name`` is the parameter's without ``.weight``.

    width: of a norm without parameters.
    """

    __slots__ = ("_bias", "_epsilon", "_ops", "_weight")

    def __init__(
        self, weights: Weights, name: str, kind: NormKind, epsilon: float, ops: Ops, *, width: int | None = None
    ) -> None:
        self._weight, self._bias = _parameters(weights, name, kind, width)
        self._epsilon = epsilon
        self._ops = ops

    def layer_args(self) -> NormArgs:
        """The norm as the CPU kernels' call for all layers takes it; valid while this object is."""
        return NormArgs(
            weight=self._weight.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            width=self._weight.shape[0],
            eps=self._epsilon,
            storage=STORAGE_CODES[self._weight.dtype],
        )

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        self._apply(x, self._weight, self._bias, out)

    def after_adding(self, delta: torch.Tensor, residual: torch.Tensor, out: torch.Tensor) -> None:
        """``residual += delta``, then ``out = norm(residual)``, in one pass over the rows."""
        if self._bias is None:
            self._ops.add_rms_norm(delta, residual, self._weight, self._epsilon, out)
        else:
            self._ops.add_layer_norm(delta, residual, self._weight, self._bias, self._epsilon, out)

    def of_each_head(self, heads: torch.Tensor) -> None:
        """Normalise in place each of ``heads`` [T, n, d] with its own d of the n d weights."""
        weight = self._weight.view(heads.shape[1:])
        bias = None if self._bias is None else self._bias.view(heads.shape[1:])
        for index in range(heads.shape[1]):
            head = heads[:, index]
            self._apply(head, weight[index], None if bias is None else bias[index], head)

    def of_all_heads(self, heads: torch.Tensor) -> None:
        """Normalise in place all of a token's ``heads`` [T, n, d] as one vector."""
        rows = heads.flatten(1)
        self(rows, rows)

    def _apply(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
        if bias is None:
            self._ops.rms_norm(x, weight, self._epsilon, out)
        else:
            self._ops.layer_norm(x, weight, bias, self._epsilon, out)


def _parameters(
    weights: Weights, name: str, kind: NormKind, width: int | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias; a norm that lacks one gets ones or zeros, one tensor for all norms of a model."""
    if kind in ("none", "rms_none"):
        like = weights["embedding.weight"]
        assert width is not None
        ones = _constant(1.0, width, like.dtype, like.device)
        return ones, None if kind == "rms_none" else _constant(0.0, width, like.dtype, like.device)
    weight = weights[f"{name}.weight"]
    if kind == "layer_no_bias":
        return weight, _constant(0.0, weight.shape[0], weight.dtype, weight.device)
    return weight, weights.get(f"{name}.bias")


@cache
def _constant(value: float, width: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.full((width,), value, dtype=dtype, device=device)
