"""The activations of an MLP, by the names that products with an activation know."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.feed_forward import Mlp
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.interface import Ops

_OWN_NAMES = {("silu", True): "silu_and_mul", ("gelu_tanh", False): "gelu_new"}
"""Of the activations, gated or not, that kernels of ours compute."""


def activation_name(mlp: Mlp) -> str:
    """``silu_and_mul``, ``gelu_new`` (tanh formula), ``gelu`` (error function), ``relu2``, ``gelu_tanh_and_mul`` ..."""
    return _OWN_NAMES.get((mlp.activation, mlp.gated)) or f"{mlp.activation}{'_and_mul' if mlp.gated else ''}"


class MlpActivation:
    """The activation of one MLP, in place. xIELU's two slopes are among the ``weights``."""

    def __init__(self, mlp: Mlp, weights: Weights, name: str, ops: Ops) -> None:
        self.name = activation_name(mlp)
        self._is_gated, self._ops = mlp.gated, ops
        self._elementwise = _xielu(weights, name) if mlp.activation == "xielu" else _ELEMENTWISE.get(mlp.activation)

    def __call__(self, inner: torch.Tensor) -> torch.Tensor:
        """The activated columns of ``inner``: all of [T, F], or of a gated one's [T, 2F] the first F."""
        active = inner[:, : inner.shape[1] // 2] if self._is_gated else inner
        match self.name:
            case "silu_and_mul":
                self._ops.silu_and_mul(inner, active)
            case "gelu":
                self._ops.gelu_inplace(inner)
            case "gelu_new":
                self._ops.gelu_new_inplace(inner)
            case _ if self._elementwise is None:
                raise EngineError(f"the engine does not compute the activation '{self.name}'.")
            case _:
                self._elementwise(active)
                if self._is_gated:
                    active.mul_(inner[:, active.shape[1] :])
        return active


def _gelu(x: torch.Tensor, approximate: str) -> None:
    torch.ops.aten.gelu_(x, approximate=approximate)


def _relu_squared(x: torch.Tensor) -> None:
    x.relu_().square_()


_ELEMENTWISE: dict[str, Callable[[torch.Tensor], object]] = {
    "silu": lambda x: functional.silu(x, inplace=True),
    "gelu": lambda x: _gelu(x, "none"),
    "gelu_tanh": lambda x: _gelu(x, "tanh"),
    "relu": torch.Tensor.relu_,
    "relu2": _relu_squared,
}


def _xielu(weights: Weights, name: str) -> Callable[[torch.Tensor], None]:
    """xIELU (Huang and Schlag, 2024): a x^2 + b x for x > 0, a (exp(x) - 1 - x) + b x below, with learned slopes."""
    beta, least = 0.5, -1e-6
    positive = float(functional.softplus(weights[f"{name}.alpha_p"].float()))
    negative = beta + float(functional.softplus(weights[f"{name}.alpha_n"].float()))

    def apply(x: torch.Tensor) -> None:
        for rows in x.split(_XIELU_ROWS):  # its intermediate results stay small
            below = (torch.expm1(rows.clamp(max=least)) - rows) * negative + beta * rows
            rows.copy_(torch.where(rows > 0, positive * rows * rows + beta * rows, below))

    return apply


_XIELU_ROWS = 64
