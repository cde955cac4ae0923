"""Baichuan: Llama with one matrix for queries, keys and values; the 13B has slopes instead of positions (ALiBi)."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import rope
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription

_LARGEST_WITH_ROPE = 4096
"""Hidden size of the 7B; the config does not say which positions a model has."""


def _read(config: dict[str, Any]) -> ModelDescription:
    alibi = int(config["hidden_size"]) > _LARGEST_WITH_ROPE
    positions = int(config.get("model_max_length") or config.get("max_position_embeddings") or 4096)
    keys = config | {"max_position_embeddings": positions}
    return llama(keys, rope=None if alibi else rope(keys), alibi=alibi)


BAICHUAN = Family(
    architectures=("BaichuanForCausalLM", "BaiChuanForCausalLM"),
    model_types=("baichuan",),
    read=_read,
    names=TensorNames(qkv=("self_attn.W_pack",)),
)
