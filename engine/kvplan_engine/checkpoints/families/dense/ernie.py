"""ERNIE 4.5, dense: Llama in which neighbours turn, with one switch for all biases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama_layer
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import decoder, mlp, rope
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription


def _read(config: dict[str, Any]) -> ModelDescription:
    bias = bool(config.get("use_bias", False))
    keys = {"rms_norm_eps": 1e-5, "head_dim": 128} | config
    positions = rope(keys, theta=500000.0, neighbours=True)
    layer = llama_layer(keys, rope=positions, qkv_bias=bias, output_bias=bias)
    layer = replace(layer, feed_forward=mlp(keys, bias=bias))
    layers = [layer] * int(config["num_hidden_layers"])
    return decoder(config, layers, layer.norms, max_positions=131072, tied=True)


ERNIE = Family(("Ernie4_5ForCausalLM",), ("ernie4_5",), _read, TensorNames())
