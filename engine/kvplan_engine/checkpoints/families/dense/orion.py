"""Orion: Llama with LayerNorm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama_layer
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import decoder
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription


def _read(config: dict[str, Any]) -> ModelDescription:
    layer = llama_layer({"rms_norm_eps": 1e-5} | config)
    layer = replace(layer, norms=replace(layer.norms, kind="layer"))
    return decoder(config, [layer] * int(config["num_hidden_layers"]), layer.norms, max_positions=4096)


ORION = Family(("OrionForCausalLM",), ("orion",), _read, TensorNames())
