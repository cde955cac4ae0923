"""Linear attention (MiniMax Text 01, Ling and Ring 2.5), short convolutions (LFM2), AliceAI."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import (
    after_dense_ones,
    attention,
    by_period,
    decoder,
    mlp,
    norms,
    rope,
    routed,
    whole,
)
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.latent.parts import latent_attention
from kvplan_engine.checkpoints.families.mixtures.parts import bailing_mixture
from kvplan_engine.checkpoints.families.states.parts import gated_mixture, kimi_delta, lightning, weighed
from kvplan_engine.checkpoints.fields import head_size, with_heads_of
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.mixers import State
from kvplan_engine.description.model import ModelDescription

# MiniMax Text 01 and M1: lightning attention (a state) in most layers, attention in the others; experts.


def read_minimax(config: dict[str, Any]) -> ModelDescription:
    """transformers: MiniMaxModel, and the keys of the first published config.json (``attn_type_list``: 1 is full)."""
    size = head_size(config)
    rotary = config.get("rotary_dim")
    positions = rope({**config, "partial_rotary_factor": int(rotary) / size} if rotary else config, size)
    mixer = attention(config, rope=positions, qkv_bias=False, output_bias=False)
    state = lightning(int(config["num_attention_heads"]), size)
    mixers = [mixer if full else state for full in _full_layers(config)]
    return decoder(config, norms(config), mixers, _minimax_mixture(config), max_positions=131072)


def _full_layers(config: dict[str, Any]) -> list[bool]:
    if config.get("attn_type_list") is not None:
        return [bool(kind) for kind in config["attn_type_list"]]
    if config.get("layer_types") is not None:
        return [kind == "full_attention" for kind in config["layer_types"]]
    return [index % 2 == 0 for index in range(int(config["num_hidden_layers"]))]


def _minimax_mixture(config: dict[str, Any]) -> Mixture:
    shared = int(config.get("shared_intermediate_size") or 0)
    return Mixture(
        int(config.get("num_local_experts", 8)),
        int(config.get("num_experts_per_tok", 2)),
        mlp(config, bias=False),
        shared=mlp(config, shared, bias=False) if shared else None,
    )


# Ling and Ring 2.5, Ling 3: groups of layers with a state, the last of each with latent attention; experts.


def read_bailing_hybrid(config: dict[str, Any]) -> ModelDescription:
    """Read as vLLM does: its code comes with the checkpoint. ValueError for biases everywhere, which nobody knows."""
    if config.get("use_bias"):
        raise ValueError("its layers have biases (use_bias)")
    state, latent, sparse = _bailing_state(config), latent_attention(config), after_dense_ones(config)
    period, mixture = whole(config, "layer_group_size", default=1), bailing_mixture(config)
    mixers = [state if (index + 1) % period else latent for index in range(len(sparse))]
    return decoder(config, norms(config), mixers, mixture, sparse, dense=mlp(config, bias=False))


def read_bailing_v3(config: dict[str, Any]) -> ModelDescription:
    """Ling 3, as vLLM reads it: Kimi Delta Attention, and gated latent attention behind each group and at the end."""
    if not config.get("no_kda_lora"):
        raise ValueError("its states have gates of low rank (no_kda_lora)")
    state, sparse = _kimi_state(config), after_dense_ones(config)
    latent, mixture = latent_attention(config, gate=_gate(config)), replace(bailing_mixture(config), correction=True)
    period, number = whole(config, "layer_group_size", default=1), int(config["num_hidden_layers"])
    last = number - number % period
    mixers = [latent if (index + 1) % period == 0 or index >= last else state for index in range(number)]
    return decoder(config, norms(config), mixers, mixture, sparse, dense=mlp(config, bias=False))


def _gate(config: dict[str, Any]) -> int:
    heads, kind = int(config["num_attention_heads"]), config.get("gated_attention_proj_granularity_type")
    return {"head_wise": heads, "element_wise": heads * int(config["v_head_dim"])}.get(str(kind), 0)


def _kimi_state(config: dict[str, Any]) -> State:
    """Saved by transformers 5, the config has its heads under keys of their own."""
    kernel = whole(config, "short_conv_kernel_size", default=4)
    heads = whole(config, "linear_num_heads", "num_attention_heads")
    size = whole(config, "linear_head_dim", default=head_size(config))
    return kimi_delta(heads, size, kernel, full_gate=True, full_decay=True)


def _bailing_state(config: dict[str, Any]) -> State:
    size = head_size(config)
    return lightning(
        int(config["num_attention_heads"]),
        size,
        bias=bool(config.get("use_qkv_bias")),
        norms=bool(config.get("use_qk_norm")),
        rope=rope(config, size),
    )


# LFM2: short convolutions, and attention in some layers; the larger ones have experts behind the first layers.


def read_lfm2(config: dict[str, Any]) -> ModelDescription:
    """transformers: Lfm2Model, Lfm2MoeModel."""
    norm, state = norms(config, key="norm_eps"), _lfm2_state(config)
    mixer = attention(config, qkv_bias=False, output_bias=False, head_norm="head")
    mixers = [mixer if kind == "full_attention" else state for kind in _kinds(config)]
    tied = bool(config.get("tie_embedding", config.get("tie_word_embeddings", True)))
    keys = {**config, "tie_word_embeddings": tied}
    if not config.get("num_experts"):
        return decoder(keys, norm, mixers, mlp(config, _inner(config), bias=False), max_positions=128000)
    mixture = routed(
        config,
        "num_experts",
        scoring="sigmoid",
        normalised=bool(config.get("norm_topk_prob", True)),
        scale=float(config.get("routed_scaling_factor", 1.0)),
        correction=bool(config.get("use_expert_bias", True)),
    )
    sparse = [index >= int(config.get("num_dense_layers", 2)) for index in range(len(mixers))]
    dense = mlp(config, int(config["intermediate_size"]), bias=False)
    return decoder(keys, norm, mixers, mixture, sparse, dense=dense, max_positions=128000)


def _kinds(config: dict[str, Any]) -> list[str]:
    if config.get("layer_types") is not None:
        return list(config["layer_types"])
    number = int(config["num_hidden_layers"])
    full = config.get("full_attn_idxs")
    return ["full_attention" if full is None or index in full else "conv" for index in range(number)]


def _lfm2_state(config: dict[str, Any]) -> State:
    bias = bool(config.get("conv_bias", False))
    return State(
        "short_conv",
        conv_channels=int(config["hidden_size"]),
        conv_kernel=int(config.get("conv_L_cache", 3)),
        recurrent_shape=(),
        bias=bias,
        conv_bias=bias,
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

# AliceAI: Kimi Delta Attention beside Qwen3-Next's attention, experts in every layer. It is described and not run.


def read_alice(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/alice_ai.py): earlier blocks are weighed for each block."""
    config = {**with_heads_of(256, config), "attention_bias": False}
    norm, size = norms(config, "rms_plus_one"), int(config["head_dim"])
    mixer = attention(config, rope=rope(config, size, partial=0.25), head_norm="head", gate="element")
    heads, head = int(config["linear_num_key_heads"]), int(config["linear_key_head_dim"])
    state = kimi_delta(heads, head, int(config.get("linear_conv_kernel_dim", 4)))
    kinds = by_period(config, int(config.get("full_attention_interval", 4)), "linear_attention")
    mixers = [mixer if kind == "full_attention" else state for kind in kinds]
    shapes = [weighed(config, "mlp"), *[weighed(config, "mlp", "attn")] * (len(kinds) - 1)]
    mixture, ends = gated_mixture(config, scoring="sigmoid", correction=True), weighed(config, "final")
    keys = {**config, "tie_word_embeddings": False}
    return decoder(keys, norm, mixers, mixture, shapes=shapes, max_positions=None, others=ends)


LINEAR = (
    Family(("Lfm2ForCausalLM",), read_lfm2, _NAMES),
    Family(("Lfm2MoeForCausalLM",), read_lfm2, _NAMES),
    Family(("AliceAIForCausalLM",), read_alice),
    Family(("MiniMaxText01ForCausalLM", "MiniMaxForCausalLM"), read_minimax),
    Family(("BailingMoeV2_5ForCausalLM",), read_bailing_hybrid),
    Family(("BailingMoeV3ForCausalLM",), read_bailing_v3),
)
