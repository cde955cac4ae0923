"""Apertus: Llama with norms of each query and key head, and an MLP with xIELU and no gate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama_layer
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import activation, decoder, mlp, rope
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription


def _read(config: dict[str, Any]) -> ModelDescription:
    keys = {"rms_norm_eps": 1e-5} | config
    act = activation(config.get("hidden_act", "xielu"))
    inner = mlp(config, activation=act, gated=False)
    layer = llama_layer(keys, rope=rope(keys, theta=12000000.0), head_norm="head")
    layers = [replace(layer, feed_forward=inner)] * int(config["num_hidden_layers"])
    return decoder(config, layers, layer.norms, max_positions=65536)


APERTUS = Family(
    architectures=("ApertusForCausalLM",),
    model_types=("apertus",),
    read=_read,
    names=TensorNames(
        up=("mlp.up_proj",),
        attention_norm="attention_layernorm",
        mlp_norm="feedforward_layernorm",
        inside={"activation.alpha_p": "mlp.act_fn.alpha_p", "activation.alpha_n": "mlp.act_fn.alpha_n"},
    ),
)
