"""Mistral: Llama with a sliding window in every layer. Its GGUF files say ``llama``."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.config import ModelConfig
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.llama import llama_config


def _read_config(config: dict[str, Any]) -> ModelConfig:
    window = config.get("sliding_window")
    return llama_config(config, "MistralForCausalLM", window_tokens=int(window) if window else None)


MISTRAL = Family(architecture="MistralForCausalLM", read_config=_read_config)
