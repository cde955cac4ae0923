"""Jais 2: LayerNorm, biases, a squared ReLU without a gate. It is described and not run."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama_attention
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import activation, decoder, mlp
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import Norms


def _read(config: dict[str, Any]) -> ModelDescription:
    keys = {"attention_bias": True, "mlp_bias": True} | config
    norm = Norms("layer", float(config.get("layer_norm_eps", 1e-5)))
    act = activation(config.get("hidden_act", "relu2"))
    inner = mlp(keys, activation=act, gated=False, bias=bool(keys["mlp_bias"]))
    layer = Layer((llama_attention(keys),), inner, norm)
    return decoder(config, [layer] * int(config["num_hidden_layers"]), norm, max_positions=8192)


JAIS2 = Family(("Jais2ForCausalLM",), ("jais2",), _read)
