"""The activations of an MLP, by the names in ``ModelConfig.activation``."""

from __future__ import annotations

import torch

from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.interface import Ops


def activate(name: str, inner: torch.Tensor, ops: Ops) -> torch.Tensor:
    """The activated columns of ``inner``, computed in place: all of [T, F], or of a gated one's [T, 2F] the first F."""
    match name:
        case "silu_and_mul":
            active = inner[:, : inner.shape[1] // 2]
            ops.silu_and_mul(inner, active)
            return active
        case "gelu":
            ops.gelu_inplace(inner)
        case "gelu_new":
            ops.gelu_new_inplace(inner)
        case _:
            raise EngineError(f"the engine does not compute the activation '{name}'.")
    return inner
