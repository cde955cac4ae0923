"""Qwen2, Qwen2.5 and MiMo: Llama with biases on queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama_layer
from kvplan_engine.checkpoints.families.family import Family, Gguf
from kvplan_engine.checkpoints.fields import decoder, window
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.mixers import FULL, Kept
from kvplan_engine.description.model import ModelDescription


def qwen(config: Mapping[str, Any], **attention_fields: Any) -> ModelDescription:
    """Llama's keys, with a window that is off unless ``use_sliding_window``, and then in the later layers alone."""
    layers = [llama_layer(config, kept=kept, **attention_fields) for kept in _kept_by_layer(config)]
    return decoder(config, layers, layers[0].norms, max_positions=32768)


def _kept_by_layer(config: Mapping[str, Any]) -> list[Kept]:
    number = int(config["num_hidden_layers"])
    if not config.get("use_sliding_window", False):
        return [FULL] * number
    num_full = min(number, int(config.get("max_window_layers") or 0))
    return [FULL] * num_full + [window(config.get("sliding_window"))] * (number - num_full)


def _read(config: dict[str, Any]) -> ModelDescription:
    return qwen(config, qkv_bias=True, output_bias=False)


QWEN2 = Family(("Qwen2ForCausalLM",), ("qwen2",), _read, TensorNames(), gguf=Gguf("qwen2"))
MIMO = Family(("MiMoForCausalLM",), ("mimo",), _read, TensorNames())
