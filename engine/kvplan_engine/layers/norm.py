"""The two normalisations, each alone or fused with the residual addition before it."""

from __future__ import annotations

import torch

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.kernels.cpu.library import STORAGE_CODES, NormArgs
from kvplan_engine.kernels.interface import Ops


class Norm:
    """RMSNorm, or LayerNorm where the checkpoint has a bias for it; ``name`` is the parameter's without ``.weight``."""

    __slots__ = ("_bias", "_epsilon", "_ops", "_weight")

    def __init__(self, weights: Weights, name: str, epsilon: float, ops: Ops) -> None:
        self._weight = weights[f"{name}.weight"]
        self._bias = weights.get(f"{name}.bias")
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
        if self._bias is None:
            self._ops.rms_norm(x, self._weight, self._epsilon, out)
        else:
            self._ops.layer_norm(x, self._weight, self._bias, self._epsilon, out)

    def after_adding(self, delta: torch.Tensor, residual: torch.Tensor, out: torch.Tensor) -> None:
        """``residual += delta``, then ``out = norm(residual)``, in one pass over the rows."""
        if self._bias is None:
            self._ops.add_rms_norm(delta, residual, self._weight, self._epsilon, out)
        else:
            self._ops.add_layer_norm(delta, residual, self._weight, self._bias, self._epsilon, out)
