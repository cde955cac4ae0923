"""LFM2: short convolutions, and attention in some layers; the larger ones have experts behind the first layers."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, mlp, model, norms
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.mixers import State
from kvplan_engine.description.model import Layer, ModelDescription


def read_lfm2(config: dict[str, Any]) -> ModelDescription:
    """transformers: Lfm2Model, Lfm2MoeModel."""
    norm = norms(config, key="norm_eps")
    mixer, state = attention(config, qkv_bias=False, output_bias=False, head_norm="head"), _state(config)
    layers = [
        Layer((mixer if kind == "full_attention" else state,), _feed_forward(config, index), norm)
        for index, kind in enumerate(_kinds(config))
    ]
    tied = bool(config.get("tie_embedding", config.get("tie_word_embeddings", True)))
    return model({**config, "tie_word_embeddings": tied}, layers, norm, max_positions=128000)


def _kinds(config: dict[str, Any]) -> list[str]:
    if config.get("layer_types") is not None:
        return list(config["layer_types"])
    number = int(config["num_hidden_layers"])
    full = config.get("full_attn_idxs")
    return ["full_attention" if full is None or index in full else "conv" for index in range(number)]


def _state(config: dict[str, Any]) -> State:
    bias = bool(config.get("conv_bias", False))
    return State(
        "short_conv",
        conv_channels=int(config["hidden_size"]),
        conv_kernel=int(config.get("conv_L_cache", 3)),
        recurrent_shape=(),
        bias=bias,
        conv_bias=bias,
    )


def _feed_forward(config: dict[str, Any], index: int) -> FeedForward:
    experts = int(config.get("num_experts") or 0)
    if not experts or index < int(config.get("num_dense_layers", 2)):
        return mlp(config, _inner(config) if not experts else int(config["intermediate_size"]), bias=False)
    return Mixture(
        experts,
        int(config["num_experts_per_tok"]),
        mlp(config, int(config["moe_intermediate_size"]), bias=False),
        scoring="sigmoid",
        normalised=bool(config.get("norm_topk_prob", True)),
        scale=float(config.get("routed_scaling_factor", 1.0)),
        correction=bool(config.get("use_expert_bias", True)),
    )


def _inner(config: dict[str, Any]) -> int:
    """Two thirds of the size that the config names, times a factor, up to a multiple; or just that size."""
    size = int(config.get("block_ff_dim") or config["intermediate_size"])
    if not config.get("block_auto_adjust_ff_dim", True):
        return size
    size = int(float(config.get("block_ffn_dim_multiplier", 1.0)) * int(2 * size / 3))
    multiple = int(config.get("block_multiple_of", 256))
    return -(-size // multiple) * multiple


_NAMES = TensorNames(
    output="self_attn.out_proj",
    query_norm="self_attn.q_layernorm",
    key_norm="self_attn.k_layernorm",
    up=("feed_forward.w1", "feed_forward.w3"),
    down="feed_forward.w2",
    attention_norm="operator_norm",
    mlp_norm="ffn_norm",
    final_norm="model.embedding_norm",
    inside={
        "in": "conv.in_proj",
        "conv": "conv.conv",
        "out": "conv.out_proj",
        "router": "feed_forward.gate",
        "correction": "feed_forward.expert_bias",
        "experts.up": ("feed_forward.experts.{}.w1", "feed_forward.experts.{}.w3"),
        "experts.down": "feed_forward.experts.{}.w2",
    },
)

FAMILIES = (
    Family(("Lfm2ForCausalLM",), read_lfm2, _NAMES),
    Family(("Lfm2MoeForCausalLM",), read_lfm2, _NAMES),
)
