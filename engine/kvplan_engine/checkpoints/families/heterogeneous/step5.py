"""Step 5: an index of regions of tokens in its full layers, windows with heads of their own, a mixture of experts."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, by_period, mlp, model, norms, rope, window
from kvplan_engine.checkpoints.families.heterogeneous.step3p7 import of_layer
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.mixers import Attention, Indexer
from kvplan_engine.description.model import Layer, ModelDescription

_REGION_TOKENS = 8


def read_step5(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does, whose class is the first. Norms' weights are stored minus one."""
    norm, sparse = norms(config, "rms_plus_one"), _sparse_layers(config)
    layers = [
        Layer((_attention(config, kind, index),), _mixture(config) if index in sparse else mlp(config), norm)
        for index, kind in enumerate(by_period(config, 0))
    ]
    keys = {**config, "max_position_embeddings": config.get("max_position_embeddings") or config.get("max_seq_len")}
    return model(keys, layers, norm, max_positions=None)


def _sparse_layers(config: dict[str, Any]) -> set[int]:
    names = ("moe_layers_enum", "moe_layer_list")
    named = next((config[name] for name in names if config.get(name) is not None), None)
    if named is None:
        return set(range(1, int(config["num_hidden_layers"])))
    return {int(item) for item in (named.split(",") if isinstance(named, str) else named)}


def _attention(config: dict[str, Any], kind: str, index: int) -> Attention:
    other = config.get("attention_other_setting") or {}
    own = {**config, **other} if other.get("attention_type") == kind else config
    slides, size = kind == "sliding_attention", int(own["head_dim"])
    heads = (config.get("swa_num_attention_heads") if slides else None) or own["num_attention_heads"]
    return attention(
        config,
        kept=window(config, kind),
        num_heads=int(heads),
        num_kv_heads=int(own["num_attention_groups"]),
        size=size,
        rope=rope(of_layer(config, index), size, kind),
        head_norm="head",
        gate="head" if config.get("use_head_wise_attn_gate") else "none",
        indexer=None if slides else _indexer(config["sparse_config"]),
    )


def _indexer(config: dict[str, Any]) -> Indexer | None:
    if config.get("enabled") is False:
        return None
    heads, regions = int(config.get("sparse_indexer_num_heads") or 16), int(config.get("topk") or 512)
    return Indexer(heads, 256, regions * _REGION_TOKENS, pool=_REGION_TOKENS, key_dtype="float8_e4m3fn")


def _mixture(config: dict[str, Any]) -> FeedForward:
    size, active = int(config["moe_intermediate_size"]), int(config["moe_top_k"])
    return Mixture(
        int(config["moe_num_experts"]),
        active,
        mlp(config, size),
        scoring="sigmoid",
        scale=float(config.get("moe_router_scaling_factor", 1.0)),
        correction=True,
        shared=mlp(config, int(config.get("share_expert_dim") or size * active)),
    )
