"""GPT-Neo: learned positions, every other layer with a window, scores that are not scaled."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import model
from kvplan_engine.checkpoints.fields import activation
from kvplan_engine.description.feed_forward import Mlp
from kvplan_engine.description.mixers import FULL, Attention, Kept
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import Norms


def read_gpt_neo(config: dict[str, Any]) -> ModelDescription:
    """transformers: GPTNeoModel. Queries, keys and values have no biases; the output has one."""
    hidden, heads = int(config["hidden_size"]), int(config["num_heads"])
    size = hidden // heads
    norm = Norms("layer", float(config.get("layer_norm_epsilon", 1e-5)))
    act = activation(config.get("activation_function", "gelu_new"))
    feed_forward = Mlp(int(config.get("intermediate_size") or 4 * hidden), act, gated=False, bias=True)
    layers = []
    for kind in _kinds(config):
        kept = FULL if kind == "global" else Kept("window", int(config.get("window_size", 256)))
        mixer = Attention(heads, heads, size, size, scale=1.0, kept=kept, output_bias=True)
        layers.append(Layer((mixer,), feed_forward, norm))
    positions = int(config.get("max_position_embeddings", 2048))
    return model(
        config,
        layers,
        norm,
        tied=True,
        learned_positions=positions,
    )


def _kinds(config: dict[str, Any]) -> list[str]:
    """``attention_types`` is a list of (kinds, how often); the older ``attention_layers`` has it spelt out."""
    if config.get("attention_layers") is not None:
        return list(config["attention_layers"])
    return [kind for kinds, times in config["attention_types"] for _ in range(times) for kind in kinds]
