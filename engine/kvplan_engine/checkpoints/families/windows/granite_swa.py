"""Granite with windows: one full layer in front of every three with a window, sinks, scales; dense or with experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import attention, mlp, model, norms, rope, window
from kvplan_engine.checkpoints.fields import head_size
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.mixers import Rope
from kvplan_engine.description.model import Layer, ModelDescription


def read_granite_swa(config: dict[str, Any]) -> ModelDescription:
    """transformers: GraniteSWAModel."""
    return _read(config, mlp(config))


def read_granite_moe_swa(config: dict[str, Any]) -> ModelDescription:
    """transformers: GraniteMoeSWAModel."""
    shared = int(config.get("shared_intermediate_size", 0))
    mixture = Mixture(
        int(config["num_local_experts"]),
        int(config["num_experts_per_tok"]),
        mlp(config, bias=False),
        scoring="softmax_of_top",
        shared=mlp(config, shared, bias=False) if shared else None,
    )
    return _read(config, mixture)


def _read(config: dict[str, Any], feed_forward: FeedForward) -> ModelDescription:
    norm = norms(config)
    residual = float(config.get("residual_multiplier", 1.0))
    number = int(config["num_hidden_layers"])
    kinds = config.get("layer_types") or [
        "sliding_attention" if index % 4 else "full_attention" for index in range(number)
    ]
    thetas = config.get("layer_rope_theta") or [None] * number
    positions = rope(config, head_size(config))
    layers = []
    for kind, theta in zip(kinds, thetas, strict=True):
        mixer = attention(
            config,
            kept=window(config, kind, 128),
            scale=float(config.get("attention_multiplier", 1.0)),
            rope=_turned(positions, theta),
            sinks=True,
        )
        layers.append(Layer((mixer,), feed_forward, norm, residual))
    return model(
        config,
        layers,
        norm,
        tied=True,
        embedding_scale=float(config.get("embedding_multiplier", 1.0)),
        logits_scale=1 / float(config.get("logits_scaling", 1.0)),
    )


def _turned(positions: Rope, theta: float | None) -> Rope | None:
    """``positions`` with a layer's own base: None where it has none of its own, 0 where it turns nothing."""
    if theta is None:
        return positions
    return replace(positions, theta=float(theta)) if theta else None
