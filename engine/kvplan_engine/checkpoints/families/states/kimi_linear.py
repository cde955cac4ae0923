"""Kimi Linear: Kimi Delta Attention in three layers of four, latent attention in the fourth; experts."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import mlp, model, norms
from kvplan_engine.checkpoints.families.latent.parts import latent_attention
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.mixers import State
from kvplan_engine.description.model import Layer, ModelDescription


def read_kimi_linear(config: dict[str, Any]) -> ModelDescription:
    """transformers: KimiLinearModel, and the keys of the published config.json."""
    norm = norms(config)
    options = {"rope": None} if config.get("mla_use_nope", True) else {}
    state, latent = _state(config), latent_attention(config, **options)
    full = set(_linear(config).get("full_attn_layers") or ())  # counted from one
    layers = []
    for index in range(int(config["num_hidden_layers"])):
        mixer = latent if index + 1 in full else state
        layers.append(Layer((mixer,), _feed_forward(config, index), norm))
    return model(config, layers, norm, max_positions=1048576)


def _linear(config: dict[str, Any]) -> dict[str, Any]:
    return dict(config["linear_attn_config"])


def _state(config: dict[str, Any]) -> State:
    """Queries, keys and values each have ``num_heads`` heads and go through convolutions of their own."""
    linear = _linear(config)
    heads, size = int(linear["num_heads"]), int(linear["head_dim"])
    return State(
        "kimi_delta",
        conv_channels=3 * heads * size,
        conv_kernel=int(linear.get("short_conv_kernel_size", 4)),
        recurrent_shape=(heads, size, size),
        recurrent_dtype="float32",
        num_heads=heads,
        key_heads=heads,
        key_size=size,
        value_size=size,
        rank=size,
    )


def _feed_forward(config: dict[str, Any], index: int) -> FeedForward:
    every = int(config.get("moe_layer_freq", 1))
    if index < int(config.get("first_k_dense_replace", 1)) or index % every:
        return mlp(config, bias=False)
    size, shared = int(config["moe_intermediate_size"]), int(config.get("num_shared_experts") or 0)
    return Mixture(
        int(config.get("num_experts") or config["num_local_experts"]),
        int(config.get("num_experts_per_token") or config["num_experts_per_tok"]),
        mlp(config, size, bias=False),
        scoring="sigmoid",
        normalised=bool(config.get("moe_renormalize", True)),
        scale=float(config.get("routed_scaling_factor", 2.446)),
        correction=True,
        num_groups=int(config.get("num_expert_group") or 1),
        top_groups=int(config.get("topk_group") or 1),
        shared=mlp(config, size * shared, bias=False) if shared else None,
    )
