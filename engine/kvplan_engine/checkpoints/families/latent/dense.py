"""Latent attention without experts: MiniCPM3, Youtu-LLM."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import mlp, model, norms
from kvplan_engine.checkpoints.families.latent.parts import latent_attention
from kvplan_engine.description.model import Layer, ModelDescription


def read_minicpm3(config: dict[str, Any]) -> ModelDescription:
    """transformers: MiniCPM3Model. A block's output is scaled by depth, the last hidden state by width."""
    norm = norms(config)
    number, hidden = int(config["num_hidden_layers"]), int(config["hidden_size"])
    scale = float(config.get("scale_depth", 1.0)) / number**0.5
    base = float(config.get("dim_model_base", hidden))
    mixer = latent_attention({**config, "rope_interleave": False})
    layer = Layer((mixer,), mlp(config), norm, scale)
    return model(
        config,
        [layer] * number,
        norm,
        tied=True,
        embedding_scale=float(config.get("scale_emb", 1.0)),
        logits_scale=base / hidden,
    )


def read_youtu(config: dict[str, Any]) -> ModelDescription:
    """transformers: YoutuModel."""
    norm = norms(config)
    layer = Layer((latent_attention(config),), mlp(config, bias=False), norm)
    return model(config, [layer] * int(config["num_hidden_layers"]), norm, tied=True)
