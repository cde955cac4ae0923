"""Mixtures whose layers differ: DBRX, AFMoE (Trinity), Laguna, MiMo V2, MiniMax M3, openPangu Pro, K2 Horizon."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints import fields
from kvplan_engine.checkpoints.families.common import (
    attention,
    by_period,
    mlp,
    model,
    norms,
    rope,
    routed,
    whole,
    window,
    with_layers,
)
from kvplan_engine.checkpoints.families.mixtures.parts import after_dense_ones, decoder, grouped_sigmoid, stepped
from kvplan_engine.checkpoints.fields import head_size, with_heads_of
from kvplan_engine.description.feed_forward import FeedForward, Mixture, Mlp
from kvplan_engine.description.mixers import FULL, Attention, Indexer, Rope
from kvplan_engine.description.model import Layer, ModelDescription, Shape, WeightFactor
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
    expert = Mlp(int(ffn["ffn_hidden_size"]), "silu")
    mixture = Mixture(int(ffn["moe_num_experts"]), int(ffn["moe_top_k"]), expert)
    norm = Norms("layer_no_bias", 1e-5)
    return model(
        {**config, "max_position_embeddings": config["max_seq_len"]},
        [Layer((mixer,), mixture, norm)] * int(config["n_layers"]),
        norm,
        hidden_size=hidden,
    )


# AFMoE (Trinity): windows with RoPE and full layers without, gated attention, four norms a layer, experts.


def read_afmoe(config: dict[str, Any]) -> ModelDescription:
    """transformers: AfmoeModel."""
    config = with_heads_of(128, config)
    norm = norms(config, "rms", "both")
    dense, mixture = mlp(config, bias=False), _afmoe_mixture(config)
    num_dense = int(config.get("num_dense_layers", 1))
    kinds = by_period(config, int(config.get("global_attn_every_n_layers", 4)))
    layers = [
        Layer((_afmoe_attention(config, kind),), dense if index < num_dense else mixture, norm)
        for index, kind in enumerate(kinds)
    ]
    scale = float(config["hidden_size"]) ** 0.5 if config.get("mup_enabled", False) else 1.0
    return model(config, layers, norm, embedding_scale=scale)


def _afmoe_attention(config: dict[str, Any], kind: str) -> Attention:
    positions = rope(config, head_size(config)) if kind == "sliding_attention" else None
    return attention(config, kept=window(config, kind, 1024), rope=positions, head_norm="head", gate="separate")


def _afmoe_mixture(config: dict[str, Any]) -> Mixture:
    size, shared = int(config["moe_intermediate_size"]), int(config.get("num_shared_experts", 2))
    scale = float(config.get("route_scale", 1.0))
    return routed(config, "num_experts", size * shared, scoring="sigmoid", scale=scale, correction=True)


# Laguna: query heads of each layer's own number, a gate per head, windows, a mixture of experts.


def read_laguna(config: dict[str, Any]) -> ModelDescription:
    """transformers: LagunaModel."""
    _refuse(config)
    norm = norms(config)
    kinds = by_period(config, 0, "full_attention")
    heads = config.get("num_attention_heads_per_layer") or [int(config["num_attention_heads"])] * len(kinds)
    blocks = config.get("mlp_layer_types") or ["dense"] + ["sparse"] * (len(kinds) - 1)
    layers = [
        Layer((_laguna_attention(config, kind, int(number)),), _laguna_feed_forward(config, block), norm)
        for kind, number, block in zip(kinds, heads, blocks, strict=True)
    ]
    return model(config, layers, norm)


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


def _laguna_feed_forward(config: dict[str, Any], block: str) -> FeedForward:
    if block == "dense":
        return mlp(config, bias=False)
    shared, scale = whole(config, "shared_expert_intermediate_size"), config.get("moe_routed_scaling_factor", 1.0)
    return routed(config, "num_experts", shared, scoring="sigmoid", scale=float(scale), correction=True)


# MiMo V2: values smaller than keys; windows with more KV heads than full layers have, and with sinks; experts.


def read_mimo_v2(config: dict[str, Any]) -> ModelDescription:
    """The keys of the published config.json, and those of transformers' MiMoV2FlashModel."""
    norm = norms(config, key="layernorm_epsilon" if "layernorm_epsilon" in config else "rms_norm_eps")
    kinds, blocks = _kinds(config), _mimo_v2_blocks(config)
    layers = [
        Layer(
            (_mimo_v2_attention(config, kind),),
            _mimo_v2_feed_forward(config, block),
            norm,
            factors=_value_factor(config),
        )
        for kind, block in zip(kinds, blocks, strict=True)
    ]
    return model(config, layers, norm)


def _kinds(config: dict[str, Any]) -> list[str]:
    pattern = config.get("hybrid_layer_pattern")
    if pattern is not None:
        return ["sliding_attention" if flag else "full_attention" for flag in pattern]
    kinds = by_period(config, 6)
    return kinds if "layer_types" in config else ["full_attention", *kinds[1:]]


def _mimo_v2_blocks(config: dict[str, Any]) -> list[str]:
    flags = config.get("moe_layer_freq")
    if isinstance(flags, list):
        return ["sparse" if flag else "dense" for flag in flags]
    return list(config.get("mlp_layer_types") or ["dense"] + ["sparse"] * (int(config["num_hidden_layers"]) - 1))


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


def _mimo_v2_feed_forward(config: dict[str, Any], block: str) -> FeedForward:
    if block == "dense":
        return mlp(config, bias=False)
    return routed(
        config,
        "n_routed_experts",
        whole(config, "moe_intermediate_size") * whole(config, "n_shared_experts", default=0),
        scoring="sigmoid",
        normalised=bool(config.get("norm_topk_prob", True)),
        scale=float(config.get("routed_scaling_factor") or 1.0),
        correction=True,
        num_groups=int(config.get("n_group") or 1),
        top_groups=int(config.get("topk_group") or 1),
    )


# MiniMax M3: grouped KV heads of which an indexer picks blocks of tokens; a mixture of experts with a clamped gate.


def read_minimax_m3(config: dict[str, Any]) -> ModelDescription:
    """transformers: MiniMaxM3VLTextModel. Norms' weights are stored minus one."""
    config = {**config, "hidden_act": "silu"}  # the checkpoint names the whole gate there, which is said below
    norm = norms(config, "rms_plus_one")
    number = int(config["num_hidden_layers"])
    layers = [
        Layer((_minimax_m3_attention(config, sparse),), _minimax_m3_feed_forward(config, block), norm)
        for sparse, block in zip(_sparse_layers(config, number), _minimax_m3_blocks(config, number), strict=True)
    ]
    return model(config, layers, norm)


def _sparse_layers(config: dict[str, Any], number: int) -> list[bool]:
    if config.get("layer_types") is not None:
        return [kind == "minimax_m3_sparse" for kind in config["layer_types"]]
    flags = _sparse(config).get("sparse_attention_freq")
    return [bool(flag) for flag in flags] if flags is not None else [False] * number


def _sparse(config: dict[str, Any]) -> dict[str, Any]:
    return dict(config.get("sparse_attention_config") or {})


def _minimax_m3_blocks(config: dict[str, Any], number: int) -> list[str]:
    if config.get("mlp_layer_types") is not None:
        return list(config["mlp_layer_types"])
    flags = config.get("moe_layer_freq") or [1] * number
    return ["sparse" if flag else "dense" for flag in flags]


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


def _minimax_m3_feed_forward(config: dict[str, Any], block: str) -> FeedForward:
    options: dict[str, Any] = {"activation": "swiglu_oai", "bias": False}
    options["limit"] = float(config.get("swiglu_limit", 7.0))
    if block == "dense":
        return mlp(config, int(config.get("dense_intermediate_size", 12288)), **options)
    return Mixture(
        int(config["num_local_experts"]),
        int(config["num_experts_per_tok"]),
        mlp(config, **options),
        scoring="sigmoid",
        scale=float(config.get("routed_scaling_factor", 2.0)),
        correction=True,
        shared=mlp(config, int(config.get("shared_intermediate_size", 3072)), **options),
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
        turns = turns if isinstance(turns, list) else [turns]

        def mixer(index: int) -> Attention:
            return attention(config, kept=fields.window(turns[index % len(turns)]), **biases)

        return decoder(config, norm, mixer, mixture, sparse, max_positions=None)
    found = decoder(config, norm, _with_sinks(config, biases), mixture, sparse, max_positions=None)
    shapes = _sinks(config, count)
    return with_layers(found, lambda layer: replace(layer, others=shapes))


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
    experts = int(config["num_experts"])
    sparse = stepped(config) if experts else [False] * int(config["num_hidden_layers"])
    dense = mlp(config, bias=False)
    mixture = _k2_horizon_mixture(config) if experts else dense
    found = decoder(config, norms(config), mixer, mixture, sparse, dense=dense, max_positions=None)  # type: ignore[arg-type]
    values = int(config["mova_num_experts"])
    return with_layers(found, lambda layer: _routed_values(config, layer, values)) if values else found


def _routed_values(config: dict[str, Any], layer: Layer, values: int) -> Layer:
    """``values`` - 1 matrices of values beside the one that attention has, and a router of them."""
    (mixer,) = layer.mixers
    if not isinstance(layer.feed_forward, Mixture):
        return layer
    if config.get("attention_bias"):
        raise EngineError("the engine does not know biases beside routed values (attention_bias, mova_num_experts).")
    hidden = int(config["hidden_size"])
    size = mixer.num_kv_heads * mixer.value_size  # type: ignore[union-attr]
    shapes: tuple[Shape, ...] = (
        Shape("value_router", (values, hidden)),
        Shape("value_experts", (values - 1, size, hidden)),
    )
    if config.get("moe_gate_bias"):
        shapes += (Shape("value_router.bias", (values,)),)
    return replace(layer, others=shapes)


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
