"""Latent attention and its index, as the configs of all families that have them describe it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import rope
from kvplan_engine.checkpoints.families.mixtures.parts import QWEN_NAMES
from kvplan_engine.description.mixers import Indexer, LatentAttention, Rope
from kvplan_engine.description.model import Shape

LATENT_NAMES = replace(
    QWEN_NAMES,
    inside={
        **QWEN_NAMES.inside,
        "query": "self_attn.q_proj",
        "query_down": "self_attn.q_a_proj",
        "query_latent_norm": "self_attn.q_a_layernorm",
        "query_up": "self_attn.q_b_proj",
        "kv_down": "self_attn.kv_a_proj_with_mqa",
        "kv_latent_norm": "self_attn.kv_a_layernorm",
        "kv_up": "self_attn.kv_b_proj",
        "indexer.query": "self_attn.indexer.wq_b",
        "indexer.key": "self_attn.indexer.wk",
        "indexer.key_norm": "self_attn.indexer.k_norm",
        "indexer.head_weights": "self_attn.indexer.weights_proj",
    },
)
"""DeepSeek's names, which all of these took over."""

MISTRAL4_NAMES = replace(
    LATENT_NAMES,
    inside={
        **LATENT_NAMES.inside,
        "experts.up": "mlp.experts.gate_up_proj",
        "experts.down": "mlp.experts.down_proj",
    },
    experts="rows",
)


def latent_attention(config: dict[str, Any], **options: Any) -> LatentAttention:
    """``options`` are fields of ``LatentAttention`` that differ."""
    nope, rotary = int(config["qk_nope_head_dim"]), int(config["qk_rope_head_dim"])
    rank = config.get("q_lora_rank")
    turned = rope(config, rotary, rotary_size=rotary, neighbours=bool(config.get("rope_interleave", True)))
    values: dict[str, Any] = {
        "num_heads": int(config["num_attention_heads"]),
        "q_rank": int(rank) if rank else None,
        "kv_rank": int(config["kv_lora_rank"]),
        "nope_size": nope,
        "rope_size": rotary,
        "value_size": int(config["v_head_dim"]),
        "scale": (nope + rotary) ** -0.5 * _scale_of_scores(turned),
        "rope": turned,
        "bias": bool(config.get("attention_bias", False)),
    }
    return LatentAttention(**values | options)


def _scale_of_scores(turned: Rope) -> float:
    """YaRN's ``mscale_all_dim`` scales queries and keys, without positions too: so their scores, by its square."""
    scaling = turned.scaling
    of_all, factor = float(scaling.get("mscale_all_dim") or 0), float(scaling.get("factor") or 1)
    if scaling["rope_type"] == "default" or not of_all or factor <= 1:
        return 1.0
    return (0.1 * of_all * math.log(factor) + 1.0) ** 2


def indexer(config: dict[str, Any]) -> Indexer:
    """DeepSeek Sparse Attention's; GLM 5's turns neighbours."""
    neighbours = config.get("model_type") == "glm_moe_dsa"
    heads, size, top_k = (int(config[f"index_{key}"]) for key in ("n_heads", "head_dim", "topk"))
    return Indexer(heads, size, top_k, neighbours)


# Hyper-connections: parameters that gate several residual streams, which only count.


def stream_shapes(config: dict[str, Any], *, mixes: bool = True) -> tuple[Shape, ...]:
    """What gates the streams before and after each of a layer's two blocks. mixes: also with each other."""
    streams, hidden = int(config.get("hc_mult", 4)), int(config["hidden_size"])
    rows, scales = (streams * (2 + streams), 3) if mixes else (2 * streams, 2)
    return tuple(
        Shape(f"{block}_hyper_connection.{name}", sizes)
        for block in ("attention", "mlp")
        for name, sizes in (("fn", (rows, streams * hidden)), ("base", (rows,)), ("scale", (scales,)))
    )


def head_shapes(config: dict[str, Any]) -> tuple[Shape, ...]:
    """What makes one of the streams behind the last layer."""
    streams, hidden = int(config.get("hc_mult", 4)), int(config["hidden_size"])
    sizes = {"hc_fn": (streams, streams * hidden), "hc_base": (streams,), "hc_scale": (1,)}
    return tuple(Shape(f"hyper_head.{name}", size) for name, size in sizes.items())
