"""The parts of one layer, ready to be applied: by the decoder's loop, or all layers' by a ``LayerRun``."""

from __future__ import annotations

from copy import copy

import torch

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.feed_forward import FeedForward, Mixture, Mlp
from kvplan_engine.description.model import Layer
from kvplan_engine.description.parameters.norms import norm_parts
from kvplan_engine.description.uniform import attention_of
from kvplan_engine.layers.norm import Norm
from kvplan_engine.models.attention_part import AttentionPart
from kvplan_engine.models.mixture_part import MixturePart
from kvplan_engine.models.mlp_part import MlpPart
from kvplan_engine.models.part_kernels import PartKernels


class DecoderLayer:
    """Attention, feed-forward and norms of layer ``index``; a norm that its family does not have is None.

    attention_norm, mlp_norm: before a block. attention_post_norm, mlp_post_norm: of its output.
    """

    def __init__(
        self, layer: Layer, weights: Weights, index: int, kernels: PartKernels, *, width: int, rope_table: str | None
    ) -> None:
        self.description = layer
        attention, feed_forward = attention_of(layer), layer.feed_forward
        assert attention is not None, "refuse_unknown_parts comes first"
        assert feed_forward is not None, "refuse_unknown_parts comes first"
        self.attention = AttentionPart(attention, layer.norms, weights, index, kernels, rope_table)
        self.feed_forward = _make_feed_forward(feed_forward, weights, index, kernels)

        parts = norm_parts(layer)

        def norm(part: str) -> Norm | None:
            norms = layer.norms
            if part not in parts:
                return None
            return Norm(weights, f"layers.{index}.{part}", norms.kind, norms.eps, kernels.ops, width=width)

        self.attention_norm, self.mlp_norm = norm("attention_norm"), norm("mlp_norm")
        self.attention_post_norm, self.mlp_post_norm = norm("attention_post_norm"), norm("mlp_post_norm")

    def at(self, index: int) -> DecoderLayer:
        """The same layer, weights and all, with the KV of layer ``index``."""
        twin = copy(self)
        twin.attention = self.attention.at(index)
        return twin

    def between(self, hidden: torch.Tensor, normed: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        """Attention's output ``delta`` is added to ``hidden``; the feed-forward's input, one of the two others."""
        self._finish(delta, self.attention_post_norm)
        if not self.description.norms.places.startswith("parallel"):
            return _add(delta, hidden, normed, self.mlp_norm)
        if self.mlp_norm is not None:
            self.mlp_norm(hidden, normed)
        hidden += delta
        return normed

    def behind(
        self, hidden: torch.Tensor, normed: torch.Tensor, delta: torch.Tensor, next_norm: Norm | None
    ) -> torch.Tensor:
        """The feed-forward's output ``delta`` is added to ``hidden``; the next layer's input."""
        self._finish(delta, self.mlp_post_norm)
        return _add(delta, hidden, normed, next_norm)

    def _finish(self, delta: torch.Tensor, post_norm: Norm | None) -> None:
        """What becomes of a block's output before it is added to the residual stream, in place."""
        if post_norm is not None:
            post_norm(delta, delta)
        if self.description.residual_scale != 1.0:
            delta.mul_(self.description.residual_scale)


def _make_feed_forward(part: FeedForward, weights: Weights, index: int, kernels: PartKernels) -> MlpPart | MixturePart:
    match part:
        case Mlp():
            return MlpPart(part, weights, index, kernels)
        case Mixture():
            return MixturePart(part, weights, index, kernels)


def _add(delta: torch.Tensor, hidden: torch.Tensor, normed: torch.Tensor, norm: Norm | None) -> torch.Tensor:
    """``hidden += delta``, and ``norm`` of it into ``normed``; what the next block reads."""
    if norm is None:
        hidden += delta
        return hidden
    norm.after_adding(delta, hidden, normed)
    return normed
