"""Muse Glimmer and Spark: windows with RoPE, full layers without, gated attention. They are described and not run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import attention, mlp, model, norms, window
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import Layer, ModelDescription, Shape


def read_muse_glimmer(config: dict[str, Any]) -> ModelDescription:
    """transformers: MuseGlimmerTextModel. Head and embedding are two matrices whatever the config says."""
    norm = norms(config, "rms_plus_one", "both")
    layers = [Layer((mixer,), mlp(config, bias=False), norm) for mixer in _mixers(config)]
    return replace(model(config, layers, norm, max_positions=131072), tie_word_embeddings=False)


def read_muse_spark(config: dict[str, Any]) -> ModelDescription:
    """transformers: MuseSparkTextModel: experts in a latent; behind each block a gate of the residual stream."""
    norm, hidden = norms(config, "rms_plus_one"), int(config["hidden_size"])
    dense, sparse = mlp(config, bias=False), _mixture(config)
    more = ("mlp_post_norm", "attention_gate", "mlp_gate")
    number = int(config["num_hidden_layers"])
    kinds = config.get("mlp_layer_types") or ["sparse"] * number
    layers = []
    for mixer, kind in zip(_mixers(config), kinds, strict=True):
        shapes = tuple(Shape(name, (hidden,)) for name in more)
        if kind == "sparse":
            shapes += (Shape("experts.post_norm", (int(config.get("moe_hidden_size", 4096)),)),)
        layers.append(Layer((mixer,), sparse if kind == "sparse" else dense, norm, others=shapes))
    return replace(model(config, layers, norm), tie_word_embeddings=False)


def _mixers(config: dict[str, Any]) -> list[Attention]:
    """Without ``layer_types`` every fourth layer is full, counted from the last."""
    last = int(config["num_hidden_layers"]) - 1
    kinds = config.get("layer_types") or [
        "sliding_attention" if (last - index) % 4 else "full_attention" for index in range(last + 1)
    ]
    plain = {**config, "attention_bias": False}
    return [attention(plain, kept=window(config, kind, 2048), gate="separate") for kind in kinds]


def _mixture(config: dict[str, Any]) -> Mixture:
    return Mixture(
        int(config["num_local_experts"]),
        int(config["num_experts_per_tok"]),
        mlp(config, int(config["moe_intermediate_size"]), bias=False),
        scoring="sigmoid",
        latent_size=int(config.get("moe_hidden_size", 4096)),
        latent_norm=True,
    )
