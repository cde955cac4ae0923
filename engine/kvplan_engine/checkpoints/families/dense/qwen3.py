"""Qwen3, dense: Llama with an RMSNorm of each query and key head before RoPE."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.dense.qwen2 import qwen
from kvplan_engine.checkpoints.families.family import Family, Gguf
from kvplan_engine.checkpoints.fields import with_heads_of
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription


def _read(config: dict[str, Any]) -> ModelDescription:
    return qwen(with_heads_of(128, config), head_norm="head")


QWEN3 = Family(("Qwen3ForCausalLM",), ("qwen3",), _read, TensorNames(), gguf=Gguf("qwen3"))
