"""AFMoE (Trinity): windows with RoPE and full layers without, gated attention, four norms a layer, experts."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, by_period, mlp, model, norms, rope, window
from kvplan_engine.checkpoints.fields import head_size, with_heads_of
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import Layer, ModelDescription


def read_afmoe(config: dict[str, Any]) -> ModelDescription:
    """transformers: AfmoeModel."""
    config = with_heads_of(128, config)
    norm = norms(config, "rms", "both")
    dense, mixture = mlp(config, bias=False), _mixture(config)
    num_dense = int(config.get("num_dense_layers", 1))
    kinds = by_period(config, int(config.get("global_attn_every_n_layers", 4)))
    layers = [
        Layer((_attention(config, kind),), dense if index < num_dense else mixture, norm)
        for index, kind in enumerate(kinds)
    ]
    scale = float(config["hidden_size"]) ** 0.5 if config.get("mup_enabled", False) else 1.0
    return model(config, layers, norm, embedding_scale=scale)


def _attention(config: dict[str, Any], kind: str) -> Attention:
    positions = rope(config, head_size(config)) if kind == "sliding_attention" else None
    return attention(config, kept=window(config, kind, 1024), rope=positions, head_norm="head", gate="separate")


def _mixture(config: dict[str, Any]) -> Mixture:
    size, shared = int(config["moe_intermediate_size"]), int(config.get("num_shared_experts", 2))
    return Mixture(
        int(config["num_experts"]),
        int(config["num_experts_per_tok"]),
        mlp(config, size, bias=False),
        scoring="sigmoid",
        scale=float(config.get("route_scale", 1.0)),
        correction=True,
        shared=mlp(config, size * shared, bias=False) if shared else None,
    )
