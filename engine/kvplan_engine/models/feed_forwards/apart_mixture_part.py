"""An MLP and experts beside it that each read the residual stream through norms of their own (Gemma 4)."""

from __future__ import annotations

from dataclasses import replace

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.norms import Norms
from kvplan_engine.layers.norm import Norm
from kvplan_engine.models.feed_forwards.mixture_part import MixturePart
from kvplan_engine.models.feed_forwards.mlp_part import MlpPart
from kvplan_engine.models.part_kernels import PartKernels
from kvplan_engine.models.residual_stream import ResidualStream
from kvplan_engine.models.step_space import StepSpace

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
