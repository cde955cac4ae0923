"""Seed-OSS: Llama with biases on queries, keys and values."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import with_heads_of
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription


def _read(config: dict[str, Any]) -> ModelDescription:
    qkv, output = bool(config.get("attention_bias", True)), bool(config.get("attention_out_bias", False))
    return llama(with_heads_of(128, config), qkv_bias=qkv, output_bias=output, max_positions=524288)


SEED_OSS = Family(("SeedOssForCausalLM",), ("seed_oss",), _read, TensorNames())
