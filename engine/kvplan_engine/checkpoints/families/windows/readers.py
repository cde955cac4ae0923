"""Readers of families of which some layers keep a window or a chunk: a section for each."""

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
    window,
)
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.mixtures.parts import GPT_OSS_GGUF, QWEN_NAMES, grouped_sigmoid, with_names
from kvplan_engine.checkpoints.families.mixtures.table import GRANITE_MOE_NAMES
from kvplan_engine.checkpoints.fields import activation, head_size, with_heads_of
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.feed_forward import FeedForward, Mixture, Mlp
from kvplan_engine.description.mixers import FULL, Attention, Kept, Rope
from kvplan_engine.description.model import ModelDescription, Shape, WeightFactor
from kvplan_engine.description.norms import Norms

_TIE = "tie_word_embeddings"

# Command R7B and Command A: windows with RoPE, full layers without positions; attention beside the MLP, or experts.


def read_cohere2(config: dict[str, Any]) -> ModelDescription:
    """transformers: Cohere2Model. Its head size is always the hidden size over the heads."""
    norm = norms(config, "layer_no_bias", "parallel", key="layer_norm_eps")
    kinds = by_period(config, int(config.get("sliding_window_pattern", 4)))
    mixers = [_cohere2_attention(config, kind) for kind in kinds]
    return decoder(config, norm, mixers, mlp(config, bias=False), **_cohere2_ends(config))


def read_cohere2_moe(config: dict[str, Any]) -> ModelDescription:
    """transformers: Cohere2MoeModel. The first layers are dense, with windows by a pattern of their own."""
    config = {"head_dim": 128, **config}
    rms = config.get("rms_norm_eps") is not None
    norm = norms(config, "rms", "parallel") if rms else norms(config, "layer_no_bias", "parallel", key="layer_norm_eps")
    kinds, sparse = _prefixed_types(config), after_dense_ones(config)
    all_full = int(config.get("prefix_dense_sliding_window_pattern", 1)) == 1
    mixers = [
        _cohere2_attention(config, kind, turns=all_full and not each) for kind, each in zip(kinds, sparse, strict=True)
    ]
    dense = mlp(config, int(config.get("prefix_dense_intermediate_size") or config["intermediate_size"]), bias=False)
    factors = (WeightFactor("shared.down", "", 0.5, 0.5),) if _averages(config) else ()
    mixture = _cohere2_mixture(config)
    return decoder(config, norm, mixers, mixture, sparse, dense=dense, factors=factors, **_cohere2_ends(config))


def _cohere2_ends(config: dict[str, Any]) -> dict[str, Any]:
    return {"max_positions": 8192, "tied": True, "logits_scale": float(config.get("logit_scale", 0.0625))}


def _prefixed_types(config: dict[str, Any]) -> list[str]:
    if config.get("layer_types") is not None:
        return by_period(config, 0)
    dense = int(config.get("first_k_dense_replace", 0))
    front = int(config.get("prefix_dense_sliding_window_pattern", 1))
    rest, number = int(config.get("sliding_window_pattern", 4)), int(config["num_hidden_layers"])
    return by_period({"num_hidden_layers": dense}, front) + by_period({"num_hidden_layers": number - dense}, rest)


def _cohere2_attention(config: dict[str, Any], kind: str, *, turns: bool = False) -> Attention:
    """turns: positions also in a full layer."""
    size = head_size(config)
    positions = rope(config, size, neighbours=True) if turns or kind == "sliding_attention" else None
    return attention(config, kept=window(config, kind, 4096), size=size, rope=positions)


def _averages(config: dict[str, Any]) -> bool:
    """Whether half of what the chosen experts give and half of what the shared ones give are added."""
    how = config.get("shared_expert_combination_strategy", "average")
    return bool(config.get("num_shared_experts")) and how == "average"


def _cohere2_mixture(config: dict[str, Any]) -> Mixture:
    expert = mlp(config, bias=False)
    shared = int(config.get("num_shared_experts") or 0)
    is_sigmoid = config.get("expert_selection_fn") == "sigmoid"
    return Mixture(
        int(config.get("num_experts", 8)),
        int(config.get("num_experts_per_tok", 2)),
        expert,
        scoring="sigmoid" if is_sigmoid else "softmax_of_top",
        normalised=is_sigmoid and bool(config.get("norm_topk_prob", True)),
        scale=0.5 if _averages(config) else 1.0,
        shared=mlp(config, expert.size * shared, bias=False) if shared else None,
    )


# CWM: Llama with one full layer in front of every three with a window. It is described and not run.


def read_cwm(config: dict[str, Any]) -> ModelDescription:
    """transformers: CwmModel."""
    plain = {**config, "attention_bias": False}
    mixers = [attention(plain, kept=window(config, kind, 8192)) for kind in _full_first(config)]
    return decoder(config, norms(config), mixers, mlp(config), max_positions=131072)


def _full_first(config: dict[str, Any]) -> list[str]:
    """``layer_types``, else one full layer in front of every three with a window."""
    number = int(config["num_hidden_layers"])
    return config.get("layer_types") or [
        "sliding_attention" if index % 4 else "full_attention" for index in range(number)
    ]


# EXAONE 4 and K-EXAONE: three layers with a window and one without positions; norms behind the blocks, or experts.


def read_exaone4(config: dict[str, Any]) -> ModelDescription:
    """transformers: Exaone4Model. A pattern may be letters (LLLG): its length is the period."""
    mixers = [_exaone_attention(config, kind) for kind in _exaone_kinds(config)]
    return decoder(config, norms(config, "rms", "after"), mixers, mlp(config, bias=False))


def read_exaone_moe(config: dict[str, Any]) -> ModelDescription:
    """transformers: ExaoneMoeModel; norms before the blocks."""
    plain = {"qkv_bias": False, "output_bias": False}
    mixers = [_exaone_attention(config, kind, **plain) for kind in _exaone_kinds(config)]
    usual = {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 1024, "routed_scaling_factor": 2.5}
    own = {"mlp_bias": False, "n_shared_experts": config.get("num_shared_experts", 1)}
    mixture = grouped_sigmoid({**usual, **config, **own})
    sparse, dense = after_dense_ones(config, 1), mlp(config, bias=False)
    return decoder(config, norms(config), mixers, mixture, sparse, dense=dense)


def _exaone_kinds(config: dict[str, Any]) -> list[str]:
    pattern = config.get("sliding_window_pattern", 4)
    has_windows = config.get("sliding_window", 4096)
    if not has_windows:
        return ["full_attention"] * int(config["num_hidden_layers"])
    return by_period(config, len(pattern) if isinstance(pattern, str) else int(pattern))


def _exaone_attention(config: dict[str, Any], kind: str, **options: Any) -> Attention:
    """Full layers turn no positions where others have a window."""
    kept = window(config, kind, 4096)
    has_windows = config.get("sliding_window", 4096)
    positions = None if kept == FULL and has_windows else rope(config, head_size(config))
    return attention(config, kept=kept, rope=positions, head_norm="head", **options)


# GPT-Neo: learned positions, every other layer with a window, scores that are not scaled.


def read_gpt_neo(config: dict[str, Any]) -> ModelDescription:
    """transformers: GPTNeoModel. Queries, keys and values have no biases; the output has one."""
    hidden, heads = int(config["hidden_size"]), int(config["num_heads"])
    size = hidden // heads
    norm = Norms("layer", float(config.get("layer_norm_epsilon", 1e-5)))
    act = activation(config.get("activation_function", "gelu_new"))
    feed_forward = Mlp(int(config.get("intermediate_size") or 4 * hidden), act, gated=False, bias=True)
    local = Kept("window", int(config.get("window_size", 256)))
    mixers = [
        Attention(heads, heads, size, size, scale=1.0, kept=FULL if kind == "global" else local, output_bias=True)
        for kind in _gpt_neo_kinds(config)
    ]
    positions = int(config.get("max_position_embeddings", 2048))
    return decoder(config, norm, mixers, feed_forward, tied=True, learned_positions=positions)


def _gpt_neo_kinds(config: dict[str, Any]) -> list[str]:
    """``attention_types`` is a list of (kinds, how often); the older ``attention_layers`` has it spelt out."""
    if config.get("attention_layers") is not None:
        return list(config["attention_layers"])
    return [kind for kinds, times in config["attention_types"] for _ in range(times) for kind in kinds]


# gpt-oss: every other layer has a window, each head a sink; a mixture of experts with a clamped gate and biases.


def read_gpt_oss(config: dict[str, Any]) -> ModelDescription:
    """transformers: GptOssModel. The published config names no dtype: what is not MXFP4 is stored in bfloat16."""
    config = with_heads_of(64, config)
    limit = float(config.get("swiglu_limit", 7.0))
    expert = Mlp(int(config["intermediate_size"]), "swiglu_oai", bias=True, limit=limit)
    mixture = routed(config, "num_local_experts", expert=expert, scoring="softmax_of_top", router_bias=True)
    bias = bool(config.get("attention_bias", True))
    mixers = [
        attention(config, kept=window(config, kind, 128), sinks=True, qkv_bias=bias, output_bias=bias)
        for kind in by_period(config, 2)
    ]
    named = "dtype" in config or "torch_dtype" in config
    return decoder(config if named else {**config, "dtype": "bfloat16"}, norms(config), mixers, mixture)


# Granite with windows: one full layer in front of every three with a window, sinks, scales; dense or with experts.


def read_granite_swa(config: dict[str, Any]) -> ModelDescription:
    """transformers: GraniteSWAModel."""
    return _read(config, mlp(config))


def read_granite_moe_swa(config: dict[str, Any]) -> ModelDescription:
    """transformers: GraniteMoeSWAModel."""
    shared = int(config.get("shared_intermediate_size", 0))
    expert = mlp(config, bias=False)
    return _read(config, routed(config, "num_local_experts", shared, expert=expert, scoring="softmax_of_top"))


def _read(config: dict[str, Any], part: FeedForward) -> ModelDescription:
    kinds, positions = _full_first(config), rope(config, head_size(config))
    thetas = config.get("layer_rope_theta") or [None] * len(kinds)
    mixers = [
        attention(
            config,
            kept=window(config, kind, 128),
            scale=float(config.get("attention_multiplier", 1.0)),
            rope=_turned(positions, theta),
            sinks=True,
        )
        for kind, theta in zip(kinds, thetas, strict=True)
    ]
    return decoder(
        config,
        norms(config),
        mixers,
        part,
        residual_scale=float(config.get("residual_multiplier", 1.0)),
        tied=True,
        embedding_scale=float(config.get("embedding_multiplier", 1.0)),
        logits_scale=1 / float(config.get("logits_scaling", 1.0)),
    )


def _turned(positions: Rope, theta: float | None) -> Rope | None:
    """``positions`` with a layer's own base: None where it has none of its own, 0 where it turns nothing."""
    if theta is None:
        return positions
    return replace(positions, theta=float(theta)) if theta else None


# Llama 4: three layers of chunks with RoPE, one that sees everything without; experts in all or half of them.


def read_llama4(config: dict[str, Any]) -> ModelDescription:
    """transformers: Llama4TextModel. Its norms of queries and keys have no weights."""
    number = int(config["num_hidden_layers"])
    has_rope = config.get("no_rope_layers") or [int((index + 1) % 4 != 0) for index in range(number)]
    mixers = [_llama4_attention(config, bool(each)) for each in has_rope[:number]]
    expert, experts = mlp(config, bias=False), _expert_layers(config, number)
    mixture = routed(config, "num_local_experts", expert.size, expert=expert, scoring="sigmoid", normalised=False)
    sparse, dense = [index in experts for index in range(number)], int(config.get("intermediate_size_mlp", 16384))
    return decoder(config, norms(config), mixers, mixture, sparse, dense=mlp(config, dense, bias=False))


def _expert_layers(config: dict[str, Any], number: int) -> set[int]:
    step = int(config.get("interleave_moe_layer_step", 1))
    named = config.get("moe_layers")
    return set(range(step - 1, number, step)) if named is None else set(named)


def _llama4_attention(config: dict[str, Any], has_rope: bool) -> Attention:
    size = head_size(config)
    chunk = config.get("attention_chunk_size", 8192)
    return attention(
        config,
        kept=Kept("chunk", int(chunk)) if has_rope and chunk else FULL,
        rope=rope({"rope_theta": 500000.0, **config}, size, neighbours=True) if has_rope else None,
    )


# Muse Glimmer and Spark: windows with RoPE, full layers without, gated attention. They are described and not run.


def read_muse_glimmer(config: dict[str, Any]) -> ModelDescription:
    """transformers: MuseGlimmerTextModel. Head and embedding are two matrices whatever the config says."""
    norm, part = norms(config, "rms_plus_one", "both"), mlp(config, bias=False)
    return decoder({**config, _TIE: False}, norm, _mixers(config), part, max_positions=131072)


def read_muse_spark(config: dict[str, Any]) -> ModelDescription:
    """transformers: MuseSparkTextModel: experts in a latent; behind each block a gate of the residual stream."""
    sparse, hidden = after_dense_ones(config), int(config["hidden_size"])
    latent = int(config.get("moe_hidden_size", 4096))
    mixture = routed(config, "num_local_experts", scoring="sigmoid", latent_size=latent, latent_norm=True)
    plain = tuple(Shape(name, (hidden,)) for name in ("mlp_post_norm", "attention_gate", "mlp_gate"))
    shapes = [(*plain, Shape("experts.post_norm", (latent,))) if each else plain for each in sparse]
    norm, dense = norms(config, "rms_plus_one"), mlp(config, bias=False)
    return decoder({**config, _TIE: False}, norm, _mixers(config), mixture, sparse, dense=dense, shapes=shapes)


def _mixers(config: dict[str, Any]) -> list[Attention]:
    """Return each layer's attention; without ``layer_types`` every fourth one is full, counted from the last."""
    last = int(config["num_hidden_layers"]) - 1
    kinds = config.get("layer_types") or [
        "sliding_attention" if (last - index) % 4 else "full_attention" for index in range(last + 1)
    ]
    plain = {**config, "attention_bias": False}
    return [attention(plain, kept=window(config, kind, 2048), gate="separate") for kind in kinds]


# OLMo 3: three layers with a window and one without; norms behind the blocks, queries and keys normalised at once.


def read_olmo3(config: dict[str, Any]) -> ModelDescription:
    """transformers: Olmo3Model."""
    mixers = [_olmo3_attention(config, kind) for kind in by_period(config, 4)]
    return decoder(config, norms(config, "rms", "after"), mixers, mlp(config, bias=False))


def _olmo3_attention(config: dict[str, Any], kind: str) -> Attention:
    size = head_size(config)
    theta = float(config.get("rope_theta", 10000.0))
    scaled = kind == "full_attention" or "rope_parameters" in config
    positions = rope(config, size, kind) if scaled else Rope(theta, size)  # a scaling is for full layers alone
    return attention(config, kept=window(config, kind, 4096), rope=positions, head_norm="all")


# PLaMo 3: a window of each layer's own, four norms, normalised heads. It is described and not run.


def read_plamo3(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/plamo3.py)."""
    plain, windows = {**config, "attention_bias": False}, config["interleaved_sliding_window"]
    mixers = [attention(plain, kept=fields.window(tokens), head_norm="head") for tokens in windows]
    norm, part = norms(config, "rms_plus_one", "both"), mlp(config, bias=False)
    return decoder(config, norm, mixers, part, max_positions=None)


_EXAONE_MOE_NAMES = with_names(QWEN_NAMES, correction="mlp.e_score_correction_bias")
_GPT_NEO_NAMES = TensorNames(
    embedding="wte",
    positions="wpe",
    layer="h.{}",
    qkv=("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
    output="attn.attention.out_proj",
    up=("mlp.c_fc",),
    down="mlp.c_proj",
    attention_norm="ln_1",
    mlp_norm="ln_2",
    final_norm="ln_f",
)
_GPT_OSS_NAMES = TensorNames(
    inside={
        "sinks": "self_attn.sinks",
        "router": "mlp.router",
        "experts.up": "mlp.experts.gate_up_proj",
        "experts.down": "mlp.experts.down_proj",
    },
    experts="turns",
)
_GRANITE_MOE_SWA_NAMES = replace(
    with_names(
        GRANITE_MOE_NAMES,
        sinks="self_attn.sinks",
        router="block_sparse_moe.router",
        experts__up="block_sparse_moe.experts.gate_up_proj",
        experts__down="block_sparse_moe.experts.down_proj",
    ),
    experts="rows",
)

OTHERS = (
    Family(("CwmForCausalLM",), read_cwm),
    Family(("MuseGlimmerForCausalLM",), read_muse_glimmer),
    Family(("Plamo3ForCausalLM",), read_plamo3),
    Family(("Olmo3ForCausalLM",), read_olmo3, TensorNames()),
    Family(("Cohere2ForCausalLM",), read_cohere2, TensorNames()),
    Family(("Cohere2MoeForCausalLM",), read_cohere2_moe, QWEN_NAMES),
    Family(("Exaone4ForCausalLM",), read_exaone4, TensorNames()),
    Family(("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"), read_exaone_moe, _EXAONE_MOE_NAMES),
    Family(("GptOssForCausalLM",), read_gpt_oss, _GPT_OSS_NAMES, gguf=GPT_OSS_GGUF),
    Family(("GraniteSWAForCausalLM",), read_granite_swa, TensorNames(inside={"sinks": "self_attn.sinks"})),
    Family(("GraniteMoeSWAForCausalLM",), read_granite_moe_swa, _GRANITE_MOE_SWA_NAMES),
    Family(("GPTNeoForCausalLM",), read_gpt_neo, _GPT_NEO_NAMES, prefixes=("transformer.", "")),
    Family(("Llama4ForCausalLM",), read_llama4),
)
