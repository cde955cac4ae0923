"""Command-R: attention and MLP side by side behind one LayerNorm without a bias; neighbours turn; scaled logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama_layer
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import decoder, rope
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.norms import Norms


def _read(config: dict[str, Any]) -> ModelDescription:
    norms = Norms("layer_no_bias", float(config.get("layer_norm_eps", 1e-5)), "parallel")
    head_norm = "per_head" if config.get("use_qk_norm") else "none"
    layer = llama_layer(config, rope=rope(config, theta=500000.0, neighbours=True), head_norm=head_norm)
    layers = [replace(layer, norms=norms)] * int(config["num_hidden_layers"])
    scale = float(config.get("logit_scale", 0.0625))
    return decoder(config, layers, norms, max_positions=8192, tied=True, logits_scale=scale)


COHERE = Family(("CohereForCausalLM",), ("cohere",), _read, TensorNames())
