"""Nemotron, Minitron: LayerNorm whose weight is stored minus one, squared ReLU without a gate, half of a head turns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama_layer
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import activation, decoder, mlp, rope
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.norms import Norms


def _read(config: dict[str, Any]) -> ModelDescription:
    norms = Norms("layer_plus_one", float(config.get("norm_eps", 1e-5)))
    positions = rope(config, partial=float(config.get("rope_percent") or 0.5))
    act = activation(config.get("hidden_act", "relu2"))
    inner = mlp(config, activation=act, gated=False, bias=bool(config.get("mlp_bias", False)))
    layer = replace(llama_layer(config, rope=positions), feed_forward=inner, norms=norms)
    return decoder(config, [layer] * int(config["num_hidden_layers"]), norms, max_positions=4096)


NEMOTRON = Family(("NemotronForCausalLM",), ("nemotron",), _read, TensorNames(up=("mlp.up_proj",)))
