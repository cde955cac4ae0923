"""MiniMax Text 01 and M1: lightning attention (a state) in most layers, attention in the others; experts."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, mlp, model, norms, rope
from kvplan_engine.checkpoints.families.states.parts import lightning
from kvplan_engine.checkpoints.fields import head_size
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.model import Layer, ModelDescription


def read_minimax(config: dict[str, Any]) -> ModelDescription:
    """transformers: MiniMaxModel, and the keys of the first published config.json (``attn_type_list``: 1 is full)."""
    norm, size = norms(config), head_size(config)
    rotary = config.get("rotary_dim")
    positions = rope({**config, "partial_rotary_factor": int(rotary) / size} if rotary else config, size)
    mixer = attention(config, rope=positions, qkv_bias=False, output_bias=False)
    state, mixture = lightning(int(config["num_attention_heads"]), size), _mixture(config)
    layers = [Layer((mixer if full else state,), mixture, norm) for full in _full_layers(config)]
    return model(config, layers, norm, max_positions=131072)


def _full_layers(config: dict[str, Any]) -> list[bool]:
    if config.get("attn_type_list") is not None:
        return [bool(kind) for kind in config["attn_type_list"]]
    if config.get("layer_types") is not None:
        return [kind == "full_attention" for kind in config["layer_types"]]
    return [index % 2 == 0 for index in range(int(config["num_hidden_layers"]))]


def _mixture(config: dict[str, Any]) -> Mixture:
    shared = int(config.get("shared_intermediate_size") or 0)
    return Mixture(
        int(config.get("num_local_experts", 8)),
        int(config.get("num_experts_per_tok", 2)),
        mlp(config, bias=False),
        shared=mlp(config, shared, bias=False) if shared else None,
    )
