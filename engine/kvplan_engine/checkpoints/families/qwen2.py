"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.config import ModelConfig
from kvplan_engine.checkpoints.families.family import Family, Gguf
from kvplan_engine.checkpoints.families.llama import llama_config
from kvplan_engine.errors import EngineError


def qwen_window(config: dict[str, Any]) -> int | None:
    """The sliding window, which is off unless ``use_sliding_window``. EngineError where only some layers have it."""
    if not config.get("use_sliding_window", False):
        return None
    if config.get("max_window_layers", 0):
        raise EngineError("the engine does not run models that mix windowed and full attention layers yet.")
    return int(config.get("sliding_window") or 0) or None


def _read_config(config: dict[str, Any]) -> ModelConfig:
    return llama_config(
        config, "Qwen2ForCausalLM", qkv_bias=True, window_tokens=qwen_window(config), max_positions=32768
    )


QWEN2 = Family(architecture="Qwen2ForCausalLM", model_type="qwen2", read_config=_read_config, gguf=Gguf("qwen2"))
