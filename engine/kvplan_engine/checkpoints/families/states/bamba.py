"""Hybrids of Mamba 2 and attention, layer by layer: Bamba and Granite 4."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, mlp, model, norms, rope
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.states.parts import mamba2_names, prefixed_mamba2
from kvplan_engine.checkpoints.fields import head_size
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import Layer, ModelDescription


def read_bamba(config: dict[str, Any]) -> ModelDescription:
    """transformers: BambaModel. Half of each head turns by position."""
    norm, state, feed_forward = norms(config), prefixed_mamba2(config), mlp(config)
    positions = rope(config, head_size(config), partial=0.5)
    full = set(config.get("attn_layer_indices") or ())
    layers = [
        Layer((attention(config, rope=positions) if index in full else state,), feed_forward, norm)
        for index in range(int(config["num_hidden_layers"]))
    ]
    return model(config, layers, norm, max_positions=262144)


def read_granite_hybrid(config: dict[str, Any]) -> ModelDescription:
    """transformers: GraniteMoeHybridModel. Its scales are Granite's; positions only where the config asks for RoPE."""
    norm, state = norms(config), prefixed_mamba2(config)
    mixer, feed_forward = _granite_attention(config), _granite_feed_forward(config)
    residual = float(config.get("residual_multiplier", 1.0))
    kinds = config.get("layer_types") or ["mamba"] * int(config["num_hidden_layers"])
    layers = [
        Layer((mixer if kind in ("attention", "full_attention") else state,), feed_forward, norm, residual)
        for kind in kinds
    ]
    return model(
        config,
        layers,
        norm,
        embedding_scale=float(config.get("embedding_multiplier", 1.0)),
        logits_scale=1 / float(config.get("logits_scaling", 1.0)),
    )


def _granite_attention(config: dict[str, Any]) -> Attention:
    turns = config.get("position_embedding_type") == "rope"
    return attention(
        config,
        rope=rope(config, head_size(config)) if turns else None,
        scale=float(config.get("attention_multiplier", 1.0)),
    )


def _granite_feed_forward(config: dict[str, Any]) -> FeedForward:
    """The MLP that every token takes, with experts beside it in the larger models."""
    shared = mlp(config, int(config.get("shared_intermediate_size", 1024)), bias=False)
    experts = int(config.get("num_local_experts", 8))
    if not experts:
        return shared
    return Mixture(
        experts,
        int(config.get("num_experts_per_tok", 2)),
        mlp(config, bias=False),
        scoring="softmax_of_top",
        shared=shared,
    )


_BAMBA_NAMES = TensorNames(
    up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
    mlp_norm="pre_ff_layernorm",
    final_norm="model.final_layernorm",
    inside=mamba2_names("mamba"),
)
_GRANITE_NAMES = TensorNames(
    up=("shared_mlp.input_linear",),
    down="shared_mlp.output_linear",
    inside={
        **mamba2_names("mamba"),
        "router": "block_sparse_moe.router.layer",
        "experts.up": "block_sparse_moe.input_linear",
        "experts.down": "block_sparse_moe.output_linear",
        "shared.up": "shared_mlp.input_linear",
        "shared.down": "shared_mlp.output_linear",
    },
)

FAMILIES = (
    Family(("BambaForCausalLM",), read_bamba, _BAMBA_NAMES),
    Family(("GraniteMoeHybridForCausalLM",), read_granite_hybrid, _GRANITE_NAMES),
)
