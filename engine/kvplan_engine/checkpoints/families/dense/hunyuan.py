"""Hunyuan, dense: Llama with norms of each query and key head behind RoPE, whose base ``alpha`` stretches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import rope
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.mixers import Rope
from kvplan_engine.description.model import ModelDescription


def stretched_rope(config: dict[str, Any]) -> Rope:
    """RoPE whose base is multiplied with alpha ** (size / (size - 2)), where the scaling has an ``alpha``."""
    plain = rope(config)
    alpha = plain.scaling.get("alpha")
    if plain.scaling["rope_type"] != "dynamic" or not alpha:
        return plain
    size = plain.rotary_size
    return replace(plain, theta=plain.theta * float(alpha) ** (size / (size - 2)), scaling={"rope_type": "default"})


def _read(config: dict[str, Any]) -> ModelDescription:
    keys = {"rms_norm_eps": 1e-5} | config
    return llama(keys, rope=stretched_rope(keys), head_norm="head", norm_after_rope=True)


HUNYUAN = Family(
    architectures=("HunYuanDenseV1ForCausalLM",),
    model_types=("hunyuan_v1_dense",),
    read=_read,
    names=TensorNames(query_norm="self_attn.query_layernorm", key_norm="self_attn.key_layernorm"),
)
