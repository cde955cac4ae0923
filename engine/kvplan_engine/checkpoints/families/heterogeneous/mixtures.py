"""Mixtures whose layers differ: DBRX, AFMoE (Trinity), Laguna, MiMo V2, MiniMax M3, openPangu Pro, K2 Horizon."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints import fields
from kvplan_engine.checkpoints.families.common import (
    after_dense_ones,
    attention,
    by_period,
    decoder,
    mlp,
    norms,
    rope,
    routed,
    stepped,
    whole,
    window,
)
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.mixtures.parts import QWEN_NAMES, grouped_sigmoid, with_names
from kvplan_engine.checkpoints.fields import head_size, with_heads_of
from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.description.mixers import FULL, Attention, Indexer, Rope
from kvplan_engine.description.model import ModelDescription, Shape, WeightFactor
from kvplan_engine.description.norms import Norms
from kvplan_engine.errors import EngineError

# DBRX: keys of its own in config.json; LayerNorms without biases, experts in every layer.


def read_dbrx(config: dict[str, Any]) -> ModelDescription:
    """transformers: DbrxModel."""
    hidden, heads = int(config["d_model"]), int(config["n_heads"])
    attn, ffn = config["attn_config"], config["ffn_config"]
    size = hidden // heads
    theta = float(attn.get("rope_theta", 10000.0))
    mixer = Attention(heads, int(attn["kv_n_heads"]), size, size, scale=size**-0.5, rope=Rope(theta, size))
    mixture = Mixture(int(ffn["moe_num_experts"]), int(ffn["moe_top_k"]), Mlp(int(ffn["ffn_hidden_size"]), "silu"))
    own = {"max_position_embeddings": config["max_seq_len"], "num_hidden_layers": config["n_layers"]}
    return decoder({**config, **own}, Norms("layer_no_bias", 1e-5), mixer, mixture, hidden_size=hidden)


# AFMoE (Trinity): windows with RoPE and full layers without, gated attention, four norms a layer, experts.


def read_afmoe(config: dict[str, Any]) -> ModelDescription:
    """transformers: AfmoeModel."""
    config = with_heads_of(128, config)
    kinds = by_period(config, int(config.get("global_attn_every_n_layers", 4)))
    mixers = [_afmoe_attention(config, kind) for kind in kinds]
    shared = whole(config, "moe_intermediate_size") * whole(config, "num_shared_experts", default=2)
    scale = float(config.get("route_scale", 1.0))
    mixture = routed(config, "num_experts", shared, scoring="sigmoid", scale=scale, correction=True)
    sparse = [index >= int(config.get("num_dense_layers", 1)) for index in range(len(kinds))]
    norm, dense = norms(config, "rms", "both"), mlp(config, bias=False)
    embedding_scale = float(config["hidden_size"]) ** 0.5 if config.get("mup_enabled", False) else 1.0
    return decoder(config, norm, mixers, mixture, sparse, dense=dense, embedding_scale=embedding_scale)


def _afmoe_attention(config: dict[str, Any], kind: str) -> Attention:
    positions = rope(config, head_size(config)) if kind == "sliding_attention" else None
    return attention(config, kept=window(config, kind, 1024), rope=positions, head_norm="head", gate="separate")


# Laguna: query heads of each layer's own number, a gate per head, windows, a mixture of experts.


def read_laguna(config: dict[str, Any]) -> ModelDescription:
    """transformers: LagunaModel."""
    _refuse(config)
    kinds = by_period(config, 0, "full_attention")
    heads = config.get("num_attention_heads_per_layer") or [config["num_attention_heads"]] * len(kinds)
    mixers = [_laguna_attention(config, kind, int(number)) for kind, number in zip(kinds, heads, strict=True)]
    shared = whole(config, "shared_expert_intermediate_size")
    scale = float(config.get("moe_routed_scaling_factor", 1.0))
    mixture = routed(config, "num_experts", shared, scoring="sigmoid", scale=scale, correction=True)
    sparse, dense = after_dense_ones(config, 1), mlp(config, bias=False)
    return decoder(config, norms(config), mixers, mixture, sparse, dense=dense)


def _refuse(config: dict[str, Any]) -> None:
    if config.get("moe_apply_router_weight_on_input") or config.get("moe_router_logit_softcapping"):
        raise EngineError("the engine lacks Laguna's capped router logits, and weights on an expert's input.")


def _laguna_attention(config: dict[str, Any], kind: str, heads: int) -> Attention:
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


# MiMo V2: values smaller than keys; windows with more KV heads than full layers have, and with sinks; experts.


def read_mimo_v2(config: dict[str, Any]) -> ModelDescription:
    """The keys of the published config.json, and those of transformers' MiMoV2FlashModel."""
    norm = norms(config, key="layernorm_epsilon" if "layernorm_epsilon" in config else "rms_norm_eps")
    mixers = [_mimo_v2_attention(config, kind) for kind in _kinds(config)]
    own = {"moe_intermediate_size": whole(config, "moe_intermediate_size"), "mlp_bias": False}
    mixture, sparse = grouped_sigmoid({**config, **own}), after_dense_ones(config, 1)
    dense, factors = mlp(config, bias=False), _value_factor(config)
    return decoder(config, norm, mixers, mixture, sparse, dense=dense, factors=factors)


def _kinds(config: dict[str, Any]) -> list[str]:
    pattern = config.get("hybrid_layer_pattern")
    if pattern is not None:
        return ["sliding_attention" if flag else "full_attention" for flag in pattern]
    kinds = by_period(config, 6)
    return kinds if "layer_types" in config else ["full_attention", *kinds[1:]]


def _mimo_v2_attention(config: dict[str, Any], kind: str) -> Attention:
    swa = "swa_" if kind == "sliding_attention" else ""
    size = int(config.get(f"{swa}head_dim") or config.get("head_dim", 192))
    theta = config.get(f"{swa}rope_theta") or config.get("rope_theta")
    stated = config.get("sliding_window_size")  # vLLM's key; transformers 5 writes one more as sliding_window
    windowed = {**config, "sliding_window": stated} if stated else config
    return attention(
        config,
        kept=window(windowed, kind, 128) if swa else FULL,
        num_heads=int(config.get(f"{swa}num_attention_heads") or config["num_attention_heads"]),
        num_kv_heads=_kv_heads(config, swa),
        size=size,
        value_size=int(config.get(f"{swa}v_head_dim") or config.get("v_head_dim", 128)),
        rope=rope({**config, "rope_theta": theta}, size, kind),
        sinks=bool(config.get("add_swa_attention_sink_bias" if swa else "add_full_attention_sink_bias", bool(swa))),
        output_bias=False,
    )


def _kv_heads(config: dict[str, Any], swa: str) -> int:
    """Windows have twice as many where the config does not say."""
    own = config.get(f"{swa}num_key_value_heads")
    return int(own) if own else int(config["num_key_value_heads"]) * (2 if swa else 1)


def _value_factor(config: dict[str, Any]) -> tuple[WeightFactor, ...]:
    scale = config.get("attention_value_scale")
    return () if scale in (None, 1.0) else (WeightFactor("qkv", "value", float(scale), float(scale)),)


# MiniMax M3: grouped KV heads of which an indexer picks blocks of tokens; a mixture of experts with a clamped gate.


def read_minimax_m3(config: dict[str, Any]) -> ModelDescription:
    """transformers: MiniMaxM3VLTextModel. Norms' weights are stored minus one."""
    config = {**config, "hidden_act": "silu"}  # the checkpoint names the whole gate there, which is said below
    mixers = [_minimax_m3_attention(config, sparse) for sparse in _sparse_layers(config)]
    gate: dict[str, Any] = {"activation": "swiglu_oai", "bias": False, "limit": float(config.get("swiglu_limit", 7.0))}
    mixture = routed(
        config,
        "num_local_experts",
        expert=mlp(config, **gate),
        scoring="sigmoid",
        scale=float(config.get("routed_scaling_factor", 2.0)),
        correction=True,
    )
    mixture = replace(mixture, shared=mlp(config, int(config.get("shared_intermediate_size", 3072)), **gate))
    dense = mlp(config, int(config.get("dense_intermediate_size", 12288)), **gate)
    return decoder(config, norms(config, "rms_plus_one"), mixers, mixture, after_dense_ones(config), dense=dense)


def _sparse_layers(config: dict[str, Any]) -> list[bool]:
    if config.get("layer_types") is not None:
        return [kind == "minimax_m3_sparse" for kind in config["layer_types"]]
    flags = _sparse(config).get("sparse_attention_freq") or [0] * int(config["num_hidden_layers"])
    return [bool(flag) for flag in flags]


def _sparse(config: dict[str, Any]) -> dict[str, Any]:
    return dict(config.get("sparse_attention_config") or {})


def _minimax_m3_attention(config: dict[str, Any], sparse: bool) -> Attention:
    size = int(config.get("head_dim", 128))
    rotary = int(config.get("rotary_dim", 64))
    return attention(
        config,
        size=size,
        rope=rope(config, size, rotary_size=rotary),
        qkv_bias=False,
        output_bias=False,
        head_norm="head",
        indexer=_indexer(config) if sparse else None,
    )


def _indexer(config: dict[str, Any]) -> Indexer:
    old = _sparse(config)
    block = int(config.get("index_block_size") or old.get("sparse_block_size", 128))
    return Indexer(
        num_heads=int(config.get("index_n_heads") or old.get("sparse_num_index_heads", 4)),
        head_size=int(config.get("index_head_dim") or old.get("sparse_index_dim", 128)),
        top_k=block * int(config.get("index_topk_blocks") or old.get("sparse_topk_blocks", 16)),
    )


# openPangu Pro MoE V2: experts behind dense layers, and keys of its own that every token attends to. It is not run.


def read_pangu_pro(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/openpangu.py): with keys of its own no layer keeps a window."""
    for key in ("kv_lora_rank", "qk_nope_head_dim"):
        if config.get(key):
            raise EngineError(f"the engine does not know what layers of openPangu keep with {key}.")
    bias = bool(config.get("attention_bias") or config.get("bias"))
    biases: dict[str, Any] = {"qkv_bias": bool(config.get("qkv_bias", bias)), "output_bias": bias}
    count = int(config.get("param_sink_number") or 0)
    norm = norms(config, places="both" if config.get("sandwich_norm") else "before")
    mixture = replace(
        grouped_sigmoid({**config, "mlp_bias": False}), correction=bool(config.get("router_enable_expert_bias"))
    )
    sparse = after_dense_ones(config)
    if not count:
        turns = config.get("interleaved_sliding_window") or config.get("sliding_window")
        kept = [fields.window(tokens) for tokens in (turns if isinstance(turns, list) else [turns])]
        mixers = [attention(config, kept=kept[index % len(kept)], **biases) for index in range(len(sparse))]
        return decoder(config, norm, mixers, mixture, sparse, max_positions=None)
    mixer, shapes = _with_sinks(config, biases), _sinks(config, count)
    return decoder(config, norm, mixer, mixture, sparse, shapes=shapes, max_positions=None)


def _with_sinks(config: dict[str, Any], biases: dict[str, Any]) -> Attention:
    turned = int(config["qk_rope_dim"])
    size = int(config["qk_nope_dim"]) + turned
    positions = rope({"rope_theta": 10000.0}, size, rotary_size=turned, neighbours=True)
    return attention(config, size=size, value_size=int(config["v_channels"]), rope=positions, **biases)


def _sinks(config: dict[str, Any], count: int) -> tuple[Shape, ...]:
    """Keys, values where they are not zeros, and the norm of each head's key."""
    heads, size = int(config["num_key_value_heads"]), int(config["qk_nope_dim"]) + int(config["qk_rope_dim"])
    shapes: tuple[Shape, ...] = (Shape("sink_key", (count, heads, size)), Shape("k_layernorm", (size,)))
    if config.get("param_sink_with_value"):
        shapes += (Shape("sink_value", (count, heads, int(config["v_channels"]))),)
    return shapes


# K2 Horizon: gated attention, with values from a mixture where a layer has experts. It is described and not run.


def read_k2_horizon(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/k2_horizon.py)."""
    head_norm = "per_head" if config.get("query_key_norm") else "none"
    gate = "separate" if config.get("attention_gate_func") else "none"
    mixer = attention(config, head_norm=head_norm, gate=gate, gate_activation="softplus")
    norm, dense = norms(config), mlp(config, bias=False)
    if not int(config["num_experts"]):
        return decoder(config, norm, mixer, dense, max_positions=None)
    sparse, values = stepped(config), _routed_values(config, mixer)
    shapes = [values if each else () for each in sparse]
    mixture = _k2_horizon_mixture(config)
    return decoder(config, norm, mixer, mixture, sparse, dense=dense, shapes=shapes, max_positions=None)


def _routed_values(config: dict[str, Any], mixer: Attention) -> tuple[Shape, ...]:
    """Matrices of values beside the one that attention has, so many in all, and a router of them."""
    values, hidden = int(config["mova_num_experts"]), int(config["hidden_size"])
    if not values:
        return ()
    if config.get("attention_bias"):
        raise EngineError("the engine does not know biases beside routed values (attention_bias, mova_num_experts).")
    size = mixer.num_kv_heads * mixer.value_size
    shapes = (Shape("value_router", (values, hidden)), Shape("value_experts", (values - 1, size, hidden)))
    return (*shapes, Shape("value_router.bias", (values,))) if config.get("moe_gate_bias") else shapes


def _k2_horizon_mixture(config: dict[str, Any]) -> Mixture:
    return routed(
        config,
        "num_experts",
        whole(config, "moe_intermediate_size") * whole(config, "num_shared_experts", default=0),
        scoring="sigmoid",
        normalised=bool(config.get("norm_topk_prob", True)),
        scale=float(config.get("router_scaling_factor") or 1.0),
        correction=bool(config.get("moe_gate_bias")),
    )


_AFMOE_NAMES = replace(
    with_names(QWEN_NAMES, router="mlp.router.gate", correction="mlp.expert_bias", gate="self_attn.gate_proj"),
    mlp_norm="pre_mlp_layernorm",
    mlp_post_norm="post_mlp_layernorm",
)
_LAGUNA_NAMES = with_names(
    QWEN_NAMES,
    correction="mlp.experts.e_score_correction_bias",
    gate="self_attn.g_proj",
    shared__up=("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
    shared__down="mlp.shared_expert.down_proj",
)
_MIMO_NAMES = with_names(QWEN_NAMES, sinks="self_attn.attention_sink_bias")

MIXTURES = (
    Family(("AfmoeForCausalLM",), read_afmoe, _AFMOE_NAMES),
    Family(("LagunaForCausalLM",), read_laguna, _LAGUNA_NAMES),
    Family(("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"), read_mimo_v2, _MIMO_NAMES),
    Family(("MiniMaxM3ForCausalLM", "MiniMaxM3SparseForCausalLM"), read_minimax_m3),
    Family(("DbrxForCausalLM",), read_dbrx),
    Family(("PanguProMoEV2ForCausalLM",), read_pangu_pro),
    Family(("K2HorizonForCausalLM",), read_k2_horizon),
)
