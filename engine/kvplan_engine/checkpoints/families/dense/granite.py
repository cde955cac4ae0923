"""Granite 3: Llama with factors on the embedding, the scores, each block's output and the logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama_layer
from kvplan_engine.checkpoints.families.family import Family, Gguf
from kvplan_engine.checkpoints.fields import decoder
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription


def _read(config: dict[str, Any]) -> ModelDescription:
    layer = llama_layer(config, scale=float(config.get("attention_multiplier", 1.0)))
    layer = replace(layer, residual_scale=float(config.get("residual_multiplier", 1.0)))
    return decoder(
        config,
        [layer] * int(config["num_hidden_layers"]),
        layer.norms,
        embedding_scale=float(config.get("embedding_multiplier", 1.0)),
        logits_scale=1.0 / float(config.get("logits_scaling", 1.0)),
    )


def _gguf_keys(own: dict[str, Any]) -> dict[str, Any]:
    names = {
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
    }
    return {name: own[key] for key, name in names.items() if key in own}


GRANITE = Family(
    ("GraniteForCausalLM",),
    ("granite",),
    _read,
    TensorNames(),
    gguf=Gguf("granite", pairs_side_by_side=True, keys=_gguf_keys),
)
