"""MiMo V2: values smaller than keys; windows with more KV heads than full layers have, and with sinks; experts."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, by_period, mlp, model, norms, rope, window
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.mixers import FULL, Attention
from kvplan_engine.description.model import Layer, ModelDescription, WeightFactor


def read_mimo_v2(config: dict[str, Any]) -> ModelDescription:
    """The keys of the published config.json, and those of transformers' MiMoV2FlashModel."""
    norm = norms(config, key="layernorm_epsilon" if "layernorm_epsilon" in config else "rms_norm_eps")
    kinds, blocks = _kinds(config), _blocks(config)
    layers = [
        Layer((_attention(config, kind),), _feed_forward(config, block), norm, factors=_value_factor(config))
        for kind, block in zip(kinds, blocks, strict=True)
    ]
    return model(config, layers, norm)


def _kinds(config: dict[str, Any]) -> list[str]:
    pattern = config.get("hybrid_layer_pattern")
    if pattern is not None:
        return ["sliding_attention" if flag else "full_attention" for flag in pattern]
    kinds = by_period(config, 6)
    return kinds if "layer_types" in config else ["full_attention", *kinds[1:]]


def _blocks(config: dict[str, Any]) -> list[str]:
    flags = config.get("moe_layer_freq")
    if isinstance(flags, list):
        return ["sparse" if flag else "dense" for flag in flags]
    return list(config.get("mlp_layer_types") or ["dense"] + ["sparse"] * (int(config["num_hidden_layers"]) - 1))


def _attention(config: dict[str, Any], kind: str) -> Attention:
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


def _feed_forward(config: dict[str, Any], block: str) -> FeedForward:
    if block == "dense":
        return mlp(config, bias=False)
    size, shared = int(config["moe_intermediate_size"]), int(config.get("n_shared_experts") or 0)
    return Mixture(
        int(config["n_routed_experts"]),
        int(config["num_experts_per_tok"]),
        mlp(config, size, bias=False),
        scoring="sigmoid",
        normalised=bool(config.get("norm_topk_prob", True)),
        scale=float(config.get("routed_scaling_factor") or 1.0),
        correction=True,
        num_groups=int(config.get("n_group") or 1),
        top_groups=int(config.get("topk_group") or 1),
        shared=mlp(config, size * shared, bias=False) if shared else None,
    )
