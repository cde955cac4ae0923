"""Jamba: one attention without positions in eight layers, Mamba in the others, experts in every other MLP."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, mlp, model, norms
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.states.parts import mamba1, mamba1_names
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.mixers import Mixer
from kvplan_engine.description.model import Layer, ModelDescription


def read_jamba(config: dict[str, Any]) -> ModelDescription:
    """transformers: JambaModel."""
    norm = norms(config)
    layers = [
        Layer((_mixer(config, index),), _feed_forward(config, index), norm)
        for index in range(int(config["num_hidden_layers"]))
    ]
    return model(config, layers, norm, max_positions=262144)


def _is_at(config: dict[str, Any], index: int, what: str, period: int, offset: int) -> bool:
    every = int(config.get(f"{what}_layer_period", period))
    return index % every == int(config.get(f"{what}_layer_offset", offset))


def _mixer(config: dict[str, Any], index: int) -> Mixer:
    if _is_at(config, index, "attn", 8, 4):
        return attention(config, rope=None, qkv_bias=False, output_bias=False)
    return mamba1(config, "mamba_", norms=True)


def _feed_forward(config: dict[str, Any], index: int) -> FeedForward:
    plain = mlp(config, bias=False)
    experts = int(config.get("num_experts", 16))
    if experts == 1 or not _is_at(config, index, "expert", 2, 1):
        return plain
    return Mixture(experts, int(config.get("num_experts_per_tok", 2)), plain, normalised=False)


_NAMES = TensorNames(
    up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
    mlp_norm="pre_ff_layernorm",
    final_norm="model.final_layernorm",
    inside={
        **mamba1_names("mamba"),
        "router": "feed_forward.router",
        "experts.up": ("feed_forward.experts.{}.gate_proj", "feed_forward.experts.{}.up_proj"),
        "experts.down": "feed_forward.experts.{}.down_proj",
    },
)

FAMILIES = (Family(("JambaForCausalLM",), read_jamba, _NAMES),)
