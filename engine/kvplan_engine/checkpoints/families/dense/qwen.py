"""Qwen (the first): Llama with fused projections, a bias on queries, keys and values, and names of its own."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import rope
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription


def _read(config: dict[str, Any]) -> ModelDescription:
    own: dict[str, Any] = {"intermediate_size": int(config["intermediate_size"]) // 2}  # counts gate and up
    own["max_position_embeddings"] = config.get("max_position_embeddings") or config["seq_length"]
    own["rms_norm_eps"] = config.get("layer_norm_epsilon", 1e-6)
    if config.get("kv_channels"):
        own["head_dim"] = config["kv_channels"]
    keys = config | own
    positions = rope(keys, theta=float(config.get("rotary_emb_base", 10000)), partial=config.get("rotary_pct", 1.0))
    return llama(keys, rope=positions, qkv_bias=True)


QWEN = Family(
    architectures=("QWenLMHeadModel",),
    model_types=("qwen",),
    read=_read,
    names=TensorNames(
        embedding="transformer.wte",
        layer="transformer.h.{}",
        qkv=("attn.c_attn",),
        output="attn.c_proj",
        up=("mlp.w2", "mlp.w1"),
        down="mlp.c_proj",
        attention_norm="ln_1",
        mlp_norm="ln_2",
        final_norm="transformer.ln_f",
    ),
)
