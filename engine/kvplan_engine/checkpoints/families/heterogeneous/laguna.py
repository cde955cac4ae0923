"""Laguna: query heads of each layer's own number, a gate per head, windows, a mixture of experts."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, by_period, mlp, model, norms, rope, window
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.errors import EngineError


def read_laguna(config: dict[str, Any]) -> ModelDescription:
    """transformers: LagunaModel."""
    _refuse(config)
    norm = norms(config)
    kinds = by_period(config, 0, "full_attention")
    heads = config.get("num_attention_heads_per_layer") or [int(config["num_attention_heads"])] * len(kinds)
    blocks = config.get("mlp_layer_types") or ["dense"] + ["sparse"] * (len(kinds) - 1)
    layers = [
        Layer((_attention(config, kind, int(number)),), _feed_forward(config, block), norm)
        for kind, number, block in zip(kinds, heads, blocks, strict=True)
    ]
    return model(config, layers, norm)


def _refuse(config: dict[str, Any]) -> None:
    if config.get("moe_apply_router_weight_on_input") or config.get("moe_router_logit_softcapping"):
        raise EngineError("the engine lacks Laguna's capped router logits, and weights on an expert's input.")


def _attention(config: dict[str, Any], kind: str, heads: int) -> Attention:
    size = int(config.get("head_dim", 128))
    full = kind == "full_attention"
    return attention(
        config,
        kept=window(config, kind, 512),
        num_heads=heads,
        size=size,
        rope=rope(config, size, kind, theta=500000.0 if full else 10000.0, partial=0.5 if full else 1.0),
        head_norm="head",
        gate="head" if config.get("gating", True) in (True, "per-head") else "separate",
        gate_activation="softplus",
    )


def _feed_forward(config: dict[str, Any], block: str) -> FeedForward:
    if block == "dense":
        return mlp(config, bias=False)
    return Mixture(
        int(config["num_experts"]),
        int(config["num_experts_per_tok"]),
        mlp(config, int(config["moe_intermediate_size"]), bias=False),
        scoring="sigmoid",
        scale=float(config.get("moe_routed_scaling_factor", 1.0)),
        correction=True,
        shared=mlp(config, int(config["shared_expert_intermediate_size"]), bias=False),
    )
