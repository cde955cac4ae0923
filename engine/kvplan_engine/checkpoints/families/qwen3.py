"""Qwen3, dense: Llama with an RMSNorm of each query and key head before RoPE."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.config import ModelConfig
from kvplan_engine.checkpoints.families.family import Family, Gguf
from kvplan_engine.checkpoints.families.llama import llama_config
from kvplan_engine.checkpoints.families.qwen2 import qwen_window


def _read_config(config: dict[str, Any]) -> ModelConfig:
    return llama_config(
        config, "Qwen3ForCausalLM", head_norms=True, window_tokens=qwen_window(config), max_positions=32768
    )


QWEN3 = Family(architecture="Qwen3ForCausalLM", model_type="qwen3", read_config=_read_config, gguf=Gguf("qwen3"))
