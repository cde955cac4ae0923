"""The weights of one layer, ready to be applied: by the decoder's loop, or all layers' by a ``LayerRun``."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan_engine.checkpoints.config import ModelConfig
from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.kernels.interface import Ops
from kvplan_engine.layers.norm import Norm
from kvplan_engine.layers.projection import ProjectionKind, StoredWeight, make_projection


class DecoderLayer:
    """Projections and norms of layer ``index``. query_norm, key_norm: of each head, None where the model has none."""

    def __init__(
        self, config: ModelConfig, weights: Weights, index: int, ops: Ops, kinds: Sequence[ProjectionKind]
    ) -> None:
        activations = {"qkv": None, "output": None, "up": config.activation, "down": None}
        self.qkv, self.output, self.up, self.down = (
            make_projection(kinds, StoredWeight(weights, f"layers.{index}.{name}", activation=activation))
            for name, activation in activations.items()
        )

        def norm(name: str) -> Norm:
            return Norm(weights, f"layers.{index}.{name}", config.norm_eps, ops)

        self.attention_norm, self.mlp_norm = norm("attention_norm"), norm("mlp_norm")
        self.query_norm = norm("query_norm") if config.head_norms else None
        self.key_norm = norm("key_norm") if config.head_norms else None
