"""MiniCPM: Llama with factors on the embedding, each block's output and the logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama_layer
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import decoder
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription


def _read(config: dict[str, Any]) -> ModelDescription:
    number, hidden = int(config["num_hidden_layers"]), int(config["hidden_size"])
    layer = llama_layer(config)
    layer = replace(layer, residual_scale=float(config.get("scale_depth", 1.0)) / number**0.5)
    return decoder(
        config,
        [layer] * number,
        layer.norms,
        tied=True,
        embedding_scale=float(config.get("scale_emb", 1.0)),
        logits_scale=float(config.get("dim_model_base") or hidden) / hidden,
    )


MINICPM = Family(("MiniCPMForCausalLM",), ("minicpm",), _read, TensorNames())
