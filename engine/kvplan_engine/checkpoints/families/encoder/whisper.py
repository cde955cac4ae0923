"""Whisper's decoder: attention over its own tokens and over the audio encoder's 1,500."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import model
from kvplan_engine.checkpoints.fields import activation
from kvplan_engine.description.feed_forward import Mlp
from kvplan_engine.description.mixers import Attention, CrossAttention
from kvplan_engine.description.model import Layer, ModelDescription, Shape
from kvplan_engine.description.norms import Norms


def read_whisper(config: dict[str, Any]) -> ModelDescription:
    """transformers: WhisperDecoder. Queries, values and outputs have biases, keys have none."""
    hidden, heads = int(config["d_model"]), int(config["decoder_attention_heads"])
    size = hidden // heads
    norm = Norms("layer", 1e-5)
    tokens = int(config.get("max_source_positions", 1500))
    mixers = (
        Attention(heads, heads, size, size, scale=size**-0.5, output_bias=True),
        CrossAttention(heads, heads, size, size, encoder_tokens=tokens, bias=True),
    )
    names = ("query.bias", "value.bias", "cross_attention_norm.weight", "cross_attention_norm.bias")
    others = tuple(Shape(name, (hidden,)) for name in names)
    act = activation(config.get("activation_function", "gelu"))
    feed_forward = Mlp(int(config["decoder_ffn_dim"]), act, gated=False, bias=True)
    layer = Layer(mixers, feed_forward, norm, others=others)
    positions = int(config.get("max_target_positions", 448))
    own = {"hidden_size": hidden, "max_position_embeddings": positions}
    scale = hidden**0.5 if config.get("scale_embedding", False) else 1.0
    return model(
        {**config, **own},
        [layer] * int(config["decoder_layers"]),
        norm,
        tied=True,
        learned_positions=positions,
        embedding_scale=scale,
    )
