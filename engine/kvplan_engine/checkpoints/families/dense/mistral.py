"""Mistral: Llama with a sliding window in every layer. Its GGUF files say ``llama``."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import window
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription

_DEFAULT_WINDOW = 4096
"""Of a config that does not mention the window: MistralConfig's in transformers."""


def _read(config: dict[str, Any]) -> ModelDescription:
    kept = window(config.get("sliding_window", _DEFAULT_WINDOW))  # null: none
    return llama(config, kept=kept, max_positions=131072)


MISTRAL = Family(("MistralForCausalLM",), ("mistral",), _read, TensorNames())
