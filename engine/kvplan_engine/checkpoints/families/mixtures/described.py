"""Mixtures that the engine describes and has not been measured with: Solar Open, Mellum, Beam, Flint and Kolibri."""

from __future__ import annotations

from dataclasses import replace

from kvplan_engine.checkpoints.families.common import (
    Config,
    after_dense_ones,
    attention,
    by_period,
    decoder,
    norms,
    rope,
    routed,
    stepped,
    whole,
    window,
)
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.mixtures.parts import grouped_sigmoid
from kvplan_engine.checkpoints.fields import head_size, with_heads_of
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import ModelDescription, Shape

_EXPERTS = ("num_experts", "num_local_experts")


def read_solar_open(config: Config) -> ModelDescription:
    """transformers: SolarOpenModel. Llama's attention and GLM 4's mixture in every layer."""
    mixer = attention(config, rope=rope(config, head_size(config), theta=1e6), output_bias=False)
    norm = norms({"rms_norm_eps": 1e-5, **config})
    return decoder(config, norm, mixer, grouped_sigmoid(config, shared=1), max_positions=131072)


def read_mellum(config: Config) -> ModelDescription:
    """transformers: MellumModel. Qwen 3's layers, some with a window and positions of their own."""
    config = with_heads_of(128, config)

    def mixer(kind: str) -> Attention:
        turns = rope(config, head_size(config), kind, theta=500000.0 if kind == "full_attention" else 10000.0)
        return attention(config, kept=window(config, kind), head_norm="head", rope=turns)

    mixers = [mixer(kind) for kind in by_period(config, 0, "full_attention")]
    mixture = routed(config, _EXPERTS, normalised=bool(config.get("norm_topk_prob", True)))
    return decoder(config, norms(config), mixers, mixture, after_dense_ones(config), max_positions=131072)


def _sigmoid_mixture(config: Config, shared: int, *, correction: bool, normalised: bool) -> Mixture:
    """Experts by Qwen's keys whose scores are sigmoids. normalised: where the config does not say."""
    return routed(
        config,
        _EXPERTS,
        shared,
        scoring="sigmoid",
        normalised=bool(config.get("norm_topk_prob", normalised)),
        scale=float(config.get("routed_scaling_factor") or 1.0),
        correction=correction,
        num_groups=whole(config, "n_group", default=1),
        top_groups=whole(config, "topk_group", default=1),
    )


def read_beam(config: Config) -> ModelDescription:
    """transformers: BeamModel. Windows with RoPE, full layers without; a gate with a bias for each head."""
    plain = {**config, "attention_bias": False}

    def mixer(kind: str) -> Attention:
        turns = rope(config, head_size(config), kind) if kind == "sliding_attention" else None
        return attention(plain, kept=window(config, kind), head_norm="head", gate="separate", rope=turns)

    mixture = _sigmoid_mixture(config, 0, correction=True, normalised=True)
    norm, sparse = norms(config, places="both"), [kind == "sparse" for kind in config["mlp_layer_types"]]
    gate = (Shape("gate.bias", (int(config["num_attention_heads"]),)),)
    mixers = [mixer(kind) for kind in config["layer_types"]]
    found = decoder(config, norm, mixers, mixture, sparse, shapes=gate, max_positions=None)
    return replace(found, tie_word_embeddings=False)


def read_flint(config: Config) -> ModelDescription:
    """Read it as vLLM does (vllm/models/flint): Qwen 3's layers with sinks, and a shared expert."""
    config = with_heads_of(128, config)
    kinds, without = config["layer_types"], set(config.get("no_rope_layer_indices") or ())
    tokens = config if config.get("use_sliding_window", True) else {**config, "sliding_window": None}

    def mixer(index: int, kind: str) -> Attention:
        turns = None if index in without else rope(config, head_size(config))
        kept = window(tokens, kind)
        return attention(config, kept=kept, head_norm="head", sinks=True, rope=turns, output_bias=False)

    shared = whole(config, "shared_expert_intermediate_size", default=1024)
    mixture = _sigmoid_mixture(config, shared, correction=False, normalised=True)
    mixers = [mixer(index, kind) for index, kind in enumerate(kinds)]
    return decoder(config, norms(config), mixers, mixture, stepped(config), max_positions=262144)


def read_kolibri(config: Config) -> ModelDescription:
    """transformers: Kolibri1Model. Four windows with RoPE, then a full layer without; four norms."""
    config = with_heads_of(128, config)
    kinds = by_period(config, 0 if "sliding_window" in config and not config["sliding_window"] else 5)

    def mixer(kind: str) -> Attention:
        turns = rope(config, head_size(config)) if kind == "sliding_attention" else None
        kept = window(config, kind, 513)
        return attention({**config, "attention_bias": False}, kept=kept, head_norm="head", rope=turns)

    shared = whole(config, "shared_expert_intermediate_size", default=512)
    mixture = _sigmoid_mixture(config, shared, correction=True, normalised=False)
    mixers = [mixer(kind) for kind in kinds]
    return decoder(config, norms(config, places="both"), mixers, mixture, max_positions=262144)


DESCRIBED = (
    Family(("SolarOpenForCausalLM",), read_solar_open),
    Family(("MellumForCausalLM",), read_mellum),
    Family(("BeamForCausalLM",), read_beam),
    Family(("FlintForCausalLM",), read_flint),
    Family(("Kolibri1ForCausalLM",), read_kolibri),
)
