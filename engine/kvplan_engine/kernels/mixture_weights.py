"""The weights of a mixture of experts, as every device's kernels take them, and the checks of a call."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.kernels.arguments import check_rows
from kvplan_engine.kernels.quantised_weight import QuantisedWeight


@dataclass(frozen=True, slots=True)
class QuantisedExperts:
    """Matrices of ``count`` experts in few bits, [count, outputs, inputs].

    rows: all of them, one expert's below the other's; its order, where there is one, is [count x inputs].
    """

    rows: QuantisedWeight
    count: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.count, self.rows.num_outputs // self.count, self.rows.num_inputs

    def is_contiguous(self) -> bool:
        """Its parts are: the kernels check them."""
        return True

    def expert(self, index: int) -> QuantisedWeight:
        """One expert's matrix [outputs, inputs], where it lies."""
        first, inputs = index * self.shape[1], self.rows.num_inputs
        one = self.rows.with_rows(lambda part: part[first : first + self.shape[1]])
        order = self.rows.order
        return one if order is None else replace(one, order=order[index * inputs : (index + 1) * inputs])

    def __getitem__(self, index: int) -> torch.Tensor:
        """The same, widened to float32."""
        return self.expert(index).dequantised()


ExpertMatrices = torch.Tensor | QuantisedExperts


def dense_matrices(matrices: ExpertMatrices) -> torch.Tensor:
    """Return the matrices in full, for kernels that take no others."""
    if isinstance(matrices, QuantisedExperts):
        raise ValueError("these kernels take no experts in few bits")
    return matrices


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """``n`` MLPs of one size F over hidden size H.

    up [n, 2F, H], gate rows above up rows, or [n, F, H] without a gate; down [n, H, F]. up_bias, down_bias: [n, 2F] or
    [n, F], and [n, H]; None where there are none.
    """

    up: ExpertMatrices
    down: ExpertMatrices
    up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class MixtureWeights:
    """router [E, H]; router_bias [E] or None; correction [E] or None; shared: n = 1; shared_gate [1, H].

    experts: n = E, or as many as the mixture holds (``Mixture.held``).
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


@dataclass(frozen=True, slots=True)
class MixtureRoom:
    """A step's memory of one mixture for T rows.

    ids [T, top_k] int32 and shares [T, top_k] float32: what the router chose. inner [T x (top_k x F + shared F)]: what
    lies between an expert's products. num_filled: see StepBatch; what becomes of the rows behind does not matter.
    """

    ids: torch.Tensor
    shares: torch.Tensor
    inner: torch.Tensor
    num_filled: torch.Tensor | None = None


def check_weights(mixture: Mixture, weights: MixtureWeights) -> None:
    """ValueError where ``weights`` are not those of ``mixture``."""
    if mixture.latent_size is not None or mixture.num_idle:
        raise ValueError("no kernel computes experts on a projection, or experts that do nothing")
    hidden = weights.router.shape[1]
    _check_experts("experts", mixture.expert, len(mixture.held_experts), hidden, weights.experts)
    named: dict[str, tuple[ExpertMatrices | None, tuple[int, ...] | None]] = {
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


def _check_shapes(named: dict[str, tuple[ExpertMatrices | None, tuple[int, ...] | None]]) -> None:
    for name, (tensor, shape) in named.items():
        found = None if tensor is None else tuple(tensor.shape)
        if found != shape or (tensor is not None and not tensor.is_contiguous()):
            raise ValueError(f"{name} is {found}, wanted {'none' if shape is None else f'contiguous {shape}'}")


def check_mixture_rows(x: torch.Tensor, out: torch.Tensor, hidden: int, dtype: torch.dtype) -> None:
    """x, out [T, hidden] of the weights' dtype."""
    check_rows("x", x, (x.shape[0], hidden), dtype)
    check_rows("out", out, (x.shape[0], hidden), dtype)
