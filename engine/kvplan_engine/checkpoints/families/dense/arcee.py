"""Arcee (AFM): Llama with a squared ReLU and no gate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama_layer
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import activation, decoder, mlp
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription


def _read(config: dict[str, Any]) -> ModelDescription:
    keys = {"rms_norm_eps": 1e-5} | config
    act = activation(config.get("hidden_act", "relu2"))
    inner = mlp(config, activation=act, gated=False, bias=bool(config.get("mlp_bias", False)))
    layer = replace(llama_layer(keys), feed_forward=inner)
    return decoder(config, [layer] * int(config["num_hidden_layers"]), layer.norms, max_positions=4096)


ARCEE = Family(("ArceeForCausalLM",), ("arcee",), _read, TensorNames(up=("mlp.up_proj",)))
