"""Latent attention and its index, as the configs of all families that have them describe it."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import rope
from kvplan_engine.description.mixers import Indexer, LatentAttention


def latent_attention(config: dict[str, Any], **options: Any) -> LatentAttention:
    """``options`` are fields of ``LatentAttention`` that differ."""
    nope, rotary = int(config["qk_nope_head_dim"]), int(config["qk_rope_head_dim"])
    rank = config.get("q_lora_rank")
    values: dict[str, Any] = {
        "num_heads": int(config["num_attention_heads"]),
        "q_rank": int(rank) if rank else None,
        "kv_rank": int(config["kv_lora_rank"]),
        "nope_size": nope,
        "rope_size": rotary,
        "value_size": int(config["v_head_dim"]),
        "scale": (nope + rotary) ** -0.5,
        "rope": rope(config, rotary, rotary_size=rotary, neighbours=bool(config.get("rope_interleave", True))),
        "bias": bool(config.get("attention_bias", False)),
    }
    return LatentAttention(**values | options)


def indexer(config: dict[str, Any]) -> Indexer:
    """DeepSeek Sparse Attention's."""
    return Indexer(int(config["index_n_heads"]), int(config["index_head_dim"]), int(config["index_topk"]))
