"""Mistral: Llama with a sliding window in every layer. Its GGUF files say ``llama``."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.config import ModelConfig
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.llama import llama_config

_DEFAULT_WINDOW = 4096
"""Of a config that does not mention the window: MistralConfig's in transformers."""


def _read_config(config: dict[str, Any]) -> ModelConfig:
    window = config.get("sliding_window", _DEFAULT_WINDOW)  # null: none
    return llama_config(
        config,
        "MistralForCausalLM",
        window_tokens=int(window) if window else None,
        max_positions=131072,
    )


MISTRAL = Family(architecture="MistralForCausalLM", model_type="mistral", read_config=_read_config)
