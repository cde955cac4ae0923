"""The weights of one layer, ready to be applied."""

from __future__ import annotations

from kvplan_engine.checkpoints.config import ModelConfig
from kvplan_engine.checkpoints.loading import Weights
from kvplan_engine.kernels import torch_ops
from kvplan_engine.kernels.interface import Ops
from kvplan_engine.layers.linear import make_linear
from kvplan_engine.layers.norm import Norm


class DecoderLayer:
    """The weights of one layer, ready to be applied."""

    def __init__(self, config: ModelConfig, weights: Weights, index: int, ops: Ops) -> None:
        activation = "silu_and_mul" if config.gated_mlp else config.activation
        activations = {"qkv": None, "output": None, "up": activation, "down": None}
        self.qkv, self.output, self.up, self.down = (
            make_linear(weights, f"layers.{index}.{name}", compiled=ops is not torch_ops, activation=activation)
            for name, activation in activations.items()
        )
        self.attention_norm = Norm(weights, f"layers.{index}.attention_norm", config.norm_eps, ops)
        self.mlp_norm = Norm(weights, f"layers.{index}.mlp_norm", config.norm_eps, ops)
        self.query_norm = self.key_norm = None
        if config.family == "qwen3":
            self.query_norm = Norm(weights, f"layers.{index}.query_norm", config.norm_eps, ops)  # of each head
            self.key_norm = Norm(weights, f"layers.{index}.key_norm", config.norm_eps, ops)
