"""Gemma 3: five layers with a window and one without, each with its own RoPE; queries and keys are normalised."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, by_period, mlp, model, norms, rope, window
from kvplan_engine.description.mixers import Attention, Rope
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.errors import EngineError


def read_gemma3(config: dict[str, Any]) -> ModelDescription:
    """transformers: Gemma3TextModel."""
    norm = norms(config, "rms_plus_one", "both")
    feed_forward = mlp(config, activation="gelu_tanh", bias=False)
    kinds = by_period(config, int(config.get("sliding_window_pattern", 6)))
    cap = config.get("final_logit_softcapping")
    return model(
        config,
        [Layer((_attention(config, kind),), feed_forward, norm) for kind in kinds],
        norm,
        max_positions=131072,
        tied=True,
        embedding_scale=float(config["hidden_size"]) ** 0.5,
        logits_softcap=float(cap) if cap else None,
    )


def read_rnj1(config: dict[str, Any]) -> ModelDescription:
    """As vLLM reads it (vllm/model_executor/models/rnj1.py): none of its layers has a window."""
    number = int(config["num_hidden_layers"])
    if "chunked_attention" in (config.get("layer_types") or ()):
        raise EngineError("the engine does not know which tokens chunked layers of Rnj-1 keep.")
    return read_gemma3({**config, "layer_types": ["full_attention"] * number})


def _attention(config: dict[str, Any], layer_type: str) -> Attention:
    size = int(config.get("head_dim", 256))
    return attention(
        {"num_attention_heads": 8, "num_key_value_heads": 4, **config},
        kept=window(config, layer_type, 4096),
        size=size,
        scale=float(config.get("query_pre_attn_scalar") or 256) ** -0.5,
        rope=_rope(config, size, layer_type),
        head_norm="head",
    )


def _rope(config: dict[str, Any], size: int, layer_type: str) -> Rope:
    """Windows have the local base and no scaling; the published configs say one or the other way."""
    if layer_type == "sliding_attention" and "rope_parameters" not in config:
        return Rope(float(config.get("rope_local_base_freq", 10000.0)), size)
    return rope({"rope_theta": 1000000.0, **config}, size, layer_type)
