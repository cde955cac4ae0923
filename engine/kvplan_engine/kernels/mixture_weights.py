"""The weights of a mixture of experts, as every device's kernels take them, and the checks of a call."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.kernels.arguments import check_rows


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """``n`` MLPs of one size F over hidden size H.

    up [n, 2F, H], gate rows above up rows, or [n, F, H] without a gate; down [n, H, F]. up_bias, down_bias: [n, 2F] or
    [n, F], and [n, H]; None where there are none.
    """

    up: torch.Tensor
    down: torch.Tensor
    up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class MixtureWeights:
    """router [E, H]; router_bias [E] or None; correction [E] float32 or None; shared: n = 1; shared_gate [1, H].

    latent_down [L, H], latent_up [H, L] where experts work on a projection; None elsewhere.
    """

    router: torch.Tensor
    experts: ExpertWeights
    router_bias: torch.Tensor | None = None
    correction: torch.Tensor | None = None
    shared: ExpertWeights | None = None
    shared_gate: torch.Tensor | None = None
    latent_down: torch.Tensor | None = None
    latent_up: torch.Tensor | None = None


def check_weights(mixture: Mixture, weights: MixtureWeights) -> None:
    """ValueError where ``weights`` are not those of ``mixture``."""
    if mixture.latent_size is not None or mixture.num_idle:
        raise ValueError("no kernel computes experts on a projection, or experts that do nothing")
    hidden = weights.router.shape[1]
    _check_experts("experts", mixture.expert, mixture.num_experts, hidden, weights.experts)
    named: dict[str, tuple[torch.Tensor | None, tuple[int, ...] | None]] = {
        "router": (weights.router, (mixture.num_experts, hidden)),
        "router_bias": (weights.router_bias, (mixture.num_experts,) if mixture.router_bias else None),
        "correction": (weights.correction, (mixture.num_experts,) if mixture.correction else None),
        "shared_gate": (weights.shared_gate, (1, hidden) if mixture.shared_gate else None),
    }
    _check_shapes(named)
    if (weights.shared is None) != (mixture.shared is None):
        raise ValueError("the shared expert's weights and its description do not belong together")
    if weights.shared is not None and mixture.shared is not None:
        _check_experts("shared", mixture.shared, 1, hidden, weights.shared)


def _check_experts(name: str, mlp: Mlp, count: int, hidden: int, weights: ExpertWeights) -> None:
    rows = 2 * mlp.size if mlp.gated else mlp.size
    _check_shapes(
        {
            f"{name}.up": (weights.up, (count, rows, hidden)),
            f"{name}.down": (weights.down, (count, hidden, mlp.size)),
            f"{name}.up_bias": (weights.up_bias, (count, rows) if mlp.bias else None),
            f"{name}.down_bias": (weights.down_bias, (count, hidden) if mlp.bias else None),
        }
    )


def _check_shapes(named: dict[str, tuple[torch.Tensor | None, tuple[int, ...] | None]]) -> None:
    for name, (tensor, shape) in named.items():
        found = None if tensor is None else tuple(tensor.shape)
        if found != shape or (tensor is not None and not tensor.is_contiguous()):
            raise ValueError(f"{name} is {found}, wanted {'none' if shape is None else f'contiguous {shape}'}")


def check_mixture_rows(x: torch.Tensor, out: torch.Tensor, hidden: int, dtype: torch.dtype) -> None:
    """x, out [T, hidden] of the weights' dtype."""
    check_rows("x", x, (x.shape[0], hidden), dtype)
    check_rows("out", out, (x.shape[0], hidden), dtype)
