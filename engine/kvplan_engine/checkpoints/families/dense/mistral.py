"""Mistral: Llama with a sliding window in every layer. Its GGUF files say ``llama``. Ministral: with or without one.

Ministral 3 multiplies queries far behind its original context with a factor that grows with their position.
"""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama, llama_layer
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import decoder, rope, window, with_heads_of
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.mixers import FULL
from kvplan_engine.description.model import ModelDescription

_DEFAULT_WINDOW = 4096
"""Of a config that does not mention the window: MistralConfig's in transformers."""


def _read(config: dict[str, Any]) -> ModelDescription:
    kept = window(config.get("sliding_window", _DEFAULT_WINDOW))  # null: none
    return llama(config, kept=kept, max_positions=131072)


def _read_ministral(config: dict[str, Any]) -> ModelDescription:
    """Where ``layer_types`` mixes windows and full attention, layer by layer."""
    tokens = config.get("sliding_window", _DEFAULT_WINDOW)
    types = config.get("layer_types") or ["sliding_attention"] * int(config["num_hidden_layers"])
    kinds = {kind: llama_layer(config, kept=window(tokens) if kind == "sliding_attention" else FULL) for kind in types}
    return decoder(config, [kinds[kind] for kind in types], kinds[types[0]].norms, max_positions=32768)


def _read_ministral3(config: dict[str, Any]) -> ModelDescription:
    keys = {"rms_norm_eps": 1e-5} | with_heads_of(128, config)
    positions = rope(keys, theta=1000000.0)
    beta, tokens = (positions.scaling.get(key) for key in ("llama_4_scaling_beta", "original_max_position_embeddings"))
    growing = (float(beta), int(tokens)) if beta and tokens else None
    kept = window(config.get("sliding_window"))
    return llama(keys, rope=positions, kept=kept, growing_scale=growing, max_positions=262144)


MISTRAL = Family(("MistralForCausalLM",), ("mistral",), _read, TensorNames())
MINISTRAL = Family(("MinistralForCausalLM",), ("ministral",), _read_ministral, TensorNames())
MINISTRAL3 = Family(("Ministral3ForCausalLM",), ("ministral3",), _read_ministral3, TensorNames())
