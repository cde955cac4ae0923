"""Gemma: Llama with wide heads, GELU in the gate, norms whose weights are stored minus one, a scaled embedding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama_attention
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import activation, decoder, mlp
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import Norms


def _read(config: dict[str, Any]) -> ModelDescription:
    keys = {"head_dim": 256} | config
    norms = Norms("rms_plus_one", float(config.get("rms_norm_eps", 1e-6)))
    named = config.get("hidden_activation") or config.get("hidden_act", "gelu_pytorch_tanh")
    act = activation("gelu_pytorch_tanh" if named == "gelu" else named)  # the published configs say gelu and mean tanh
    layer = Layer((llama_attention(keys),), replace(mlp(keys), activation=act), norms)
    layers = [layer] * int(config["num_hidden_layers"])
    scale = int(config["hidden_size"]) ** 0.5
    return decoder(config, layers, norms, max_positions=8192, tied=True, embedding_scale=scale)


GEMMA = Family(("GemmaForCausalLM",), ("gemma",), _read, TensorNames())
