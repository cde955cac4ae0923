"""gpt-oss: every other layer has a window, each head a sink; a mixture of experts with a clamped gate and biases."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, by_period, model, norms, window
from kvplan_engine.checkpoints.fields import with_heads_of
from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.description.model import Layer, ModelDescription


def read_gpt_oss(config: dict[str, Any]) -> ModelDescription:
    """transformers: GptOssModel. The published config names no dtype: what is not MXFP4 is stored in bfloat16."""
    config = with_heads_of(64, config)
    norm = norms(config)
    expert = Mlp(
        int(config["intermediate_size"]), "swiglu_oai", bias=True, limit=float(config.get("swiglu_limit", 7.0))
    )
    feed_forward = Mixture(
        int(config["num_local_experts"]),
        int(config["num_experts_per_tok"]),
        expert,
        scoring="softmax_of_top",
        router_bias=True,
    )
    bias = bool(config.get("attention_bias", True))
    layers = []
    for kind in by_period(config, 2):
        kept = window(config, kind, 128)
        mixer = attention(config, kept=kept, sinks=True, qkv_bias=bias, output_bias=bias)
        layers.append(Layer((mixer,), feed_forward, norm))
    named = "dtype" in config or "torch_dtype" in config
    return model(config if named else {**config, "dtype": "bfloat16"}, layers, norm)
