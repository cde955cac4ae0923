"""The parts that compute each token by itself: MLPs and mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch.nn import functional

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.description.norms import Norms
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.cpu.structures import MixtureArgs
from kvplan_engine.kernels.interface import Ops
from kvplan_engine.kernels.mixture_weights import MixtureRoom
from kvplan_engine.layers.mixture import make_mixture
from kvplan_engine.layers.norm import Norm
from kvplan_engine.layers.projection import FusedProjection, StoredWeight, add_or_store, make_projection
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.part_kernels import PartKernels
from kvplan_engine.models.residual_stream import ResidualStream
from kvplan_engine.models.step_batch import StepSpace


def activation_name(mlp: Mlp) -> str:
    """Return the name that products know an activation by: ``silu_and_mul``, ``gelu_new`` (tanh formula), ``relu2``."""
    if mlp.gated:
        return f"{mlp.activation}_and_mul"
    return "gelu_new" if mlp.activation == "gelu_tanh" else mlp.activation


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


class MlpPart:
    """Up (and gate), activation, down, of layer ``index``; name: what its parameters begin with, None: the layer's."""

    launches_each_expert = False

    def __init__(
        self, mlp: Mlp, weights: Weights, index: int, kernels: PartKernels, *, name: str | None = None
    ) -> None:
        name = f"layers.{index}" if name is None else name
        self._size = mlp.size
        self._activation = MlpActivation(mlp, weights, f"{name}.activation", kernels.ops)
        stored = StoredWeight(weights, f"{name}.up", activation=self._activation.name)
        self.up = make_projection(kernels.projections, stored)
        self.down = make_projection(kernels.projections, StoredWeight(weights, f"{name}.down"))
        is_halved = mlp.gated and self.up.activation is not None
        self._columns = mlp.size * (2 if mlp.gated and not is_halved else 1)

    def __call__(
        self, normed: torch.Tensor, step: StepSpace, delta: torch.Tensor, residual: torch.Tensor | None = None
    ) -> bool:
        """From ``normed`` [T, H] by way of the scratch buffer; ``delta``, ``residual`` [T, H]: see add_or_store."""
        return add_or_store(self.down, self._activated(normed, step), delta, residual)

    def _activated(self, normed: torch.Tensor, step: StepSpace) -> torch.Tensor:
        """[T, F] in the scratch buffer."""
        up = self.up
        if isinstance(up, FusedProjection) and up.follows is not None and up.takes(normed):
            (active,) = step.workspace.scratch((normed.shape[0], self._size))
            up.activated(normed, active)
            return active
        (inner,) = step.workspace.scratch((normed.shape[0], self._columns))
        up(normed, inner)
        return inner if up.activation is not None else self._activation(inner)


_ALIGNMENT_BYTES = 64
_CHOICE_BYTES = 8
"""Of one chosen expert: its number and its weight."""


class MixturePart:
    """The router and the experts of layer ``index``, the shared one among them."""

    def __init__(self, mixture: Mixture, weights: Weights, index: int, kernels: PartKernels) -> None:
        self._mixture = mixture
        self._run = make_mixture(kernels.mixtures, mixture, weights, index)
        self.launches_each_expert = self._run.launches_each_expert

    @property
    def layer_args(self) -> MixtureArgs | None:
        """See MixtureRun.layer_args."""
        return self._run.layer_args

    def __call__(self, normed: torch.Tensor, step: StepSpace, delta: torch.Tensor) -> None:
        """From ``normed`` [T, H] into ``delta`` [T, H], by way of the scratch buffer."""
        room = self.room(normed.shape[0], step.workspace)
        self._run(normed, delta, replace(room, num_filled=step.batch.num_filled))

    def room(self, rows: int, workspace: Workspace) -> MixtureRoom:
        """The scratch buffer cut up for so many rows.

        Behind the activation an expert's inner columns are half of those that the buffer is made for.
        """
        mixture, scratch = self._mixture, workspace["scratch"].view(-1)
        shape = (rows, mixture.top_k)
        choices = rows * mixture.top_k
        raw = scratch.view(torch.uint8)
        ids, shares = (raw[4 * choices * i : 4 * choices * (i + 1)] for i in range(2))
        start = -(-choices * _CHOICE_BYTES // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        columns = mixture.top_k * mixture.expert.size + (0 if mixture.shared is None else mixture.shared.size)
        inner = raw[start : start + rows * columns * scratch.itemsize].view(scratch.dtype)
        return MixtureRoom(ids.view(torch.int32).view(shape), shares.view(torch.float32).view(shape), inner)


# An MLP and experts beside it that each read the residual stream through norms of their own (Gemma 4).


_LEAST_WEIGHT = 2.0**-20


class ApartMixturePart:
    """norm(mlp(source)) + norm(experts(norm(hidden))), of layer ``index``."""

    def __init__(self, mixture: Mixture, norms: Norms, weights: Weights, index: int, kernels: PartKernels) -> None:
        assert mixture.shared is not None
        name = f"layers.{index}"
        _fold_scales(weights, name, mixture.held_experts)
        self._mlp = MlpPart(mixture.shared, weights, index, kernels, name=f"{name}.shared")
        self._experts = MixturePart(replace(mixture, shared=None, apart=False), weights, index, kernels)
        self.launches_each_expert = self._experts.launches_each_expert
        self._before, self._after, self._after_mlp = (
            Norm(weights, f"{name}.{part}", "rms", norms.eps, kernels.ops)
            for part in ("experts_norm", "experts_post_norm", "shared_post_norm")
        )

    def __call__(self, stream: ResidualStream, step: StepSpace) -> None:
        """From ``stream`` into ``stream.delta``; ``stream.normed`` is overwritten."""
        self._mlp(stream.source, step, stream.delta)
        self._after_mlp(stream.delta, stream.delta)
        self._before(stream.hidden, stream.normed)
        self._experts(stream.normed, step, stream.normed)
        self._after(stream.normed, stream.normed)
        stream.delta.add_(stream.normed)


def _fold_scales(weights: Weights, name: str, held: range) -> None:
    """The scales of the router's input and of the experts' outputs become part of the matrices beside them.

    The router's input is the stream, normalised and scaled by ``router_scale`` / sqrt(H); the experts' is the same with
    the weight of their norm. So the router reads what the experts read once its columns are divided by that weight.
    held: the experts that are here; scales are those of all.
    """
    weight, router, down = (weights[f"{name}.{part}.weight"] for part in ("experts_norm", "router", "experts.down"))
    weight.masked_fill_(weight == 0.0, _LEAST_WEIGHT)  # so that it can be divided by
    columns = weights[f"{name}.router_scale"].float() * router.shape[1] ** -0.5 / weight.float()
    router.copy_(router.float() * columns)
    scales = weights[f"{name}.expert_scale"].float()[held.start : held.stop]
    by_expert = down.view(scales.shape[0], -1)
    for matrix, scale in zip(by_expert, scales.tolist(), strict=True):
        matrix.mul_(scale)
