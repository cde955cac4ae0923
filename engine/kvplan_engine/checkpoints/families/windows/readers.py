"""Readers of families of which some layers keep a window or a chunk: a section for each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints import fields
from kvplan_engine.checkpoints.families.common import attention, by_period, mlp, model, norms, rope, window
from kvplan_engine.checkpoints.fields import activation, head_size, with_heads_of
from kvplan_engine.description.feed_forward import FeedForward, Mixture, Mlp
from kvplan_engine.description.mixers import FULL, Attention, Kept, Rope
from kvplan_engine.description.model import Layer, ModelDescription, Shape, WeightFactor
from kvplan_engine.description.norms import Norms

# Command R7B and Command A: windows with RoPE, full layers without positions; attention beside the MLP, or experts.


def read_cohere2(config: dict[str, Any]) -> ModelDescription:
    """transformers: Cohere2Model. Its head size is always the hidden size over the heads."""
    norm = norms(config, "layer_no_bias", "parallel", key="layer_norm_eps")
    feed_forward = mlp(config, bias=False)
    kinds = by_period(config, int(config.get("sliding_window_pattern", 4)))
    layers = [Layer((_cohere2_attention(config, kind),), feed_forward, norm) for kind in kinds]
    return _model(config, layers, norm)


def read_cohere2_moe(config: dict[str, Any]) -> ModelDescription:
    """transformers: Cohere2MoeModel. The first layers are dense, with windows by a pattern of their own."""
    config = {"head_dim": 128, **config}
    rms = config.get("rms_norm_eps") is not None
    norm = norms(config, "rms", "parallel") if rms else norms(config, "layer_no_bias", "parallel", key="layer_norm_eps")
    dense = int(config.get("first_k_dense_replace", 0))
    kinds = _prefixed_types(config, dense)
    all_full = int(config.get("prefix_dense_sliding_window_pattern", 1)) == 1
    blocks = config.get("mlp_layer_types") or ["dense"] * dense + ["sparse"] * (len(kinds) - dense)
    layers = [
        Layer(
            (_cohere2_attention(config, kind, turns=all_full and block == "dense"),),
            _feed_forward(config, block),
            norm,
            factors=(WeightFactor("shared.down", "", 0.5, 0.5),) if _averages(config) else (),
        )
        for kind, block in zip(kinds, blocks, strict=True)
    ]
    return _model(config, layers, norm)


def _model(config: dict[str, Any], layers: list[Layer], norm: Norms) -> ModelDescription:
    return model(
        config,
        layers,
        norm,
        max_positions=8192,
        tied=True,
        logits_scale=float(config.get("logit_scale", 0.0625)),
    )


def _prefixed_types(config: dict[str, Any], dense: int) -> list[str]:
    if config.get("layer_types") is not None:
        return by_period(config, 0)
    number = int(config["num_hidden_layers"])
    front = int(config.get("prefix_dense_sliding_window_pattern", 1))
    rest = int(config.get("sliding_window_pattern", 4))
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


def _feed_forward(config: dict[str, Any], block: str) -> FeedForward:
    if block == "dense":
        return mlp(config, int(config.get("prefix_dense_intermediate_size") or config["intermediate_size"]), bias=False)
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
    norm = norms(config)
    kinds = config.get("layer_types") or [
        "sliding_attention" if index % 4 else "full_attention" for index in range(int(config["num_hidden_layers"]))
    ]
    plain = {**config, "attention_bias": False}
    layers = [Layer((attention(plain, kept=window(config, kind, 8192)),), mlp(config), norm) for kind in kinds]
    return model(config, layers, norm, max_positions=131072)


# EXAONE 4 and K-EXAONE: three layers with a window and one without positions; norms behind the blocks, or experts.


def read_exaone4(config: dict[str, Any]) -> ModelDescription:
    """transformers: Exaone4Model. A pattern may be letters (LLLG): its length is the period."""
    norm = norms(config, "rms", "after")
    feed_forward = mlp(config, bias=False)
    layers = [Layer((_exaone_attention(config, kind),), feed_forward, norm) for kind in _exaone_kinds(config)]
    return model(config, layers, norm)


def read_exaone_moe(config: dict[str, Any]) -> ModelDescription:
    """transformers: ExaoneMoeModel; norms before the blocks."""
    norm = norms(config)
    kinds = _exaone_kinds(config)
    dense = int(config.get("first_k_dense_replace", 1))
    blocks = config.get("mlp_layer_types") or ["dense"] * dense + ["sparse"] * (len(kinds) - dense)
    layers = []
    for kind, block in zip(kinds, blocks, strict=True):
        feed_forward = mlp(config, bias=False) if block == "dense" else _exaone_mixture(config)
        layers.append(Layer((_exaone_attention(config, kind, qkv_bias=False, output_bias=False),), feed_forward, norm))
    return model(config, layers, norm)


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


def _exaone_mixture(config: dict[str, Any]) -> Mixture:
    size, shared = int(config.get("moe_intermediate_size", 1024)), int(config.get("num_shared_experts", 1))
    return Mixture(
        int(config.get("num_experts", 64)),
        int(config.get("num_experts_per_tok", 8)),
        mlp(config, size, bias=False),
        scoring="sigmoid",
        normalised=bool(config.get("norm_topk_prob", True)),
        scale=float(config.get("routed_scaling_factor", 2.5)),
        correction=True,
        num_groups=int(config.get("n_group", 1)),
        top_groups=int(config.get("topk_group", 1)),
        shared=mlp(config, size * shared, bias=False) if shared else None,
    )


# GPT-Neo: learned positions, every other layer with a window, scores that are not scaled.


def read_gpt_neo(config: dict[str, Any]) -> ModelDescription:
    """transformers: GPTNeoModel. Queries, keys and values have no biases; the output has one."""
    hidden, heads = int(config["hidden_size"]), int(config["num_heads"])
    size = hidden // heads
    norm = Norms("layer", float(config.get("layer_norm_epsilon", 1e-5)))
    act = activation(config.get("activation_function", "gelu_new"))
    feed_forward = Mlp(int(config.get("intermediate_size") or 4 * hidden), act, gated=False, bias=True)
    layers = []
    for kind in _gpt_neo_kinds(config):
        kept = FULL if kind == "global" else Kept("window", int(config.get("window_size", 256)))
        mixer = Attention(heads, heads, size, size, scale=1.0, kept=kept, output_bias=True)
        layers.append(Layer((mixer,), feed_forward, norm))
    positions = int(config.get("max_position_embeddings", 2048))
    return model(
        config,
        layers,
        norm,
        tied=True,
        learned_positions=positions,
    )


def _gpt_neo_kinds(config: dict[str, Any]) -> list[str]:
    """``attention_types`` is a list of (kinds, how often); the older ``attention_layers`` has it spelt out."""
    if config.get("attention_layers") is not None:
        return list(config["attention_layers"])
    return [kind for kinds, times in config["attention_types"] for _ in range(times) for kind in kinds]


# gpt-oss: every other layer has a window, each head a sink; a mixture of experts with a clamped gate and biases.


def read_gpt_oss(config: dict[str, Any]) -> ModelDescription:
    """transformers: GptOssModel. The published config names no dtype: what is not MXFP4 is stored in bfloat16."""
    config = with_heads_of(64, config)
    norm = norms(config)
    expert = Mlp(
        int(config["intermediate_size"]), "swiglu_oai", bias=True, limit=float(config.get("swiglu_limit", 7.0))
    )
    feed_forward = Mixture(
        int(config["num_local_experts"]),
        int(config["num_experts_per_tok"]),
        expert,
        scoring="softmax_of_top",
        router_bias=True,
    )
    bias = bool(config.get("attention_bias", True))
    layers = []
    for kind in by_period(config, 2):
        kept = window(config, kind, 128)
        mixer = attention(config, kept=kept, sinks=True, qkv_bias=bias, output_bias=bias)
        layers.append(Layer((mixer,), feed_forward, norm))
    named = "dtype" in config or "torch_dtype" in config
    return model(config if named else {**config, "dtype": "bfloat16"}, layers, norm)


# Granite with windows: one full layer in front of every three with a window, sinks, scales; dense or with experts.


def read_granite_swa(config: dict[str, Any]) -> ModelDescription:
    """transformers: GraniteSWAModel."""
    return _read(config, mlp(config))


def read_granite_moe_swa(config: dict[str, Any]) -> ModelDescription:
    """transformers: GraniteMoeSWAModel."""
    shared = int(config.get("shared_intermediate_size", 0))
    mixture = Mixture(
        int(config["num_local_experts"]),
        int(config["num_experts_per_tok"]),
        mlp(config, bias=False),
        scoring="softmax_of_top",
        shared=mlp(config, shared, bias=False) if shared else None,
    )
    return _read(config, mixture)


def _read(config: dict[str, Any], feed_forward: FeedForward) -> ModelDescription:
    norm = norms(config)
    residual = float(config.get("residual_multiplier", 1.0))
    number = int(config["num_hidden_layers"])
    kinds = config.get("layer_types") or [
        "sliding_attention" if index % 4 else "full_attention" for index in range(number)
    ]
    thetas = config.get("layer_rope_theta") or [None] * number
    positions = rope(config, head_size(config))
    layers = []
    for kind, theta in zip(kinds, thetas, strict=True):
        mixer = attention(
            config,
            kept=window(config, kind, 128),
            scale=float(config.get("attention_multiplier", 1.0)),
            rope=_turned(positions, theta),
            sinks=True,
        )
        layers.append(Layer((mixer,), feed_forward, norm, residual))
    return model(
        config,
        layers,
        norm,
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
    norm = norms(config)
    number = int(config["num_hidden_layers"])
    has_rope = config.get("no_rope_layers") or [int((index + 1) % 4 != 0) for index in range(number)]
    experts = _expert_layers(config, number)
    dense = mlp(config, int(config.get("intermediate_size_mlp", 16384)), bias=False)
    mixture = _llama4_mixture(config)
    layers = [
        Layer((_llama4_attention(config, bool(has_rope[index])),), mixture if index in experts else dense, norm)
        for index in range(number)
    ]
    return model(config, layers, norm)


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


def _llama4_mixture(config: dict[str, Any]) -> Mixture:
    expert = mlp(config, bias=False)
    return Mixture(
        int(config["num_local_experts"]),
        int(config["num_experts_per_tok"]),
        expert,
        scoring="sigmoid",
        normalised=False,
        shared=expert,
    )


# Muse Glimmer and Spark: windows with RoPE, full layers without, gated attention. They are described and not run.


def read_muse_glimmer(config: dict[str, Any]) -> ModelDescription:
    """transformers: MuseGlimmerTextModel. Head and embedding are two matrices whatever the config says."""
    norm = norms(config, "rms_plus_one", "both")
    layers = [Layer((mixer,), mlp(config, bias=False), norm) for mixer in _mixers(config)]
    return replace(model(config, layers, norm, max_positions=131072), tie_word_embeddings=False)


def read_muse_spark(config: dict[str, Any]) -> ModelDescription:
    """transformers: MuseSparkTextModel: experts in a latent; behind each block a gate of the residual stream."""
    norm, hidden = norms(config, "rms_plus_one"), int(config["hidden_size"])
    dense, sparse = mlp(config, bias=False), _muse_mixture(config)
    more = ("mlp_post_norm", "attention_gate", "mlp_gate")
    number = int(config["num_hidden_layers"])
    kinds = config.get("mlp_layer_types") or ["sparse"] * number
    layers = []
    for mixer, kind in zip(_mixers(config), kinds, strict=True):
        shapes = tuple(Shape(name, (hidden,)) for name in more)
        if kind == "sparse":
            shapes += (Shape("experts.post_norm", (int(config.get("moe_hidden_size", 4096)),)),)
        layers.append(Layer((mixer,), sparse if kind == "sparse" else dense, norm, others=shapes))
    return replace(model(config, layers, norm), tie_word_embeddings=False)


def _mixers(config: dict[str, Any]) -> list[Attention]:
    """Return each layer's attention; without ``layer_types`` every fourth one is full, counted from the last."""
    last = int(config["num_hidden_layers"]) - 1
    kinds = config.get("layer_types") or [
        "sliding_attention" if (last - index) % 4 else "full_attention" for index in range(last + 1)
    ]
    plain = {**config, "attention_bias": False}
    return [attention(plain, kept=window(config, kind, 2048), gate="separate") for kind in kinds]


def _muse_mixture(config: dict[str, Any]) -> Mixture:
    return Mixture(
        int(config["num_local_experts"]),
        int(config["num_experts_per_tok"]),
        mlp(config, int(config["moe_intermediate_size"]), bias=False),
        scoring="sigmoid",
        latent_size=int(config.get("moe_hidden_size", 4096)),
        latent_norm=True,
    )


# OLMo 3: three layers with a window and one without; norms behind the blocks, queries and keys normalised at once.


def read_olmo3(config: dict[str, Any]) -> ModelDescription:
    """transformers: Olmo3Model."""
    norm = norms(config, "rms", "after")
    feed_forward = mlp(config, bias=False)
    layers = [Layer((_olmo3_attention(config, kind),), feed_forward, norm) for kind in by_period(config, 4)]
    return model(config, layers, norm)


def _olmo3_attention(config: dict[str, Any], kind: str) -> Attention:
    size = head_size(config)
    theta = float(config.get("rope_theta", 10000.0))
    scaled = kind == "full_attention" or "rope_parameters" in config
    positions = rope(config, size, kind) if scaled else Rope(theta, size)  # a scaling is for full layers alone
    return attention(config, kept=window(config, kind, 4096), rope=positions, head_norm="all")


# PLaMo 3: a window of each layer's own, four norms, normalised heads. It is described and not run.


def read_plamo3(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/plamo3.py)."""
    norm = norms(config, "rms_plus_one", "both")
    plain = {**config, "attention_bias": False}
    layers = [
        Layer((attention(plain, kept=fields.window(tokens), head_norm="head"),), mlp(config, bias=False), norm)
        for tokens in config["interleaved_sliding_window"]
    ]
    return model(config, layers, norm, max_positions=None)
