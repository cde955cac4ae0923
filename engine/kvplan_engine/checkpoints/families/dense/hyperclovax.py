"""HyperCLOVA X: Llama with Granite's factors, and in some models norms behind the blocks too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama_layer
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import decoder, head_size
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.norms import Norms


def _read(config: dict[str, Any]) -> ModelDescription:
    scale = config.get("attention_multiplier") or head_size(config) ** -0.5
    layer = llama_layer(config, scale=float(scale))
    norms = Norms("rms", layer.norms.eps, "both" if config.get("use_post_norm", True) else "before")
    layer = replace(layer, norms=norms, residual_scale=float(config.get("residual_multiplier") or 1.0))
    return decoder(
        config,
        [layer] * int(config["num_hidden_layers"]),
        layer.norms,
        embedding_scale=float(config.get("embedding_multiplier") or 1.0),
        logits_scale=float(config.get("logits_scaling") or 1.0),
    )


HYPERCLOVAX = Family(
    architectures=("HyperCLOVAXForCausalLM",),
    model_types=("hyperclovax",),
    read=_read,
    names=TensorNames(
        attention_post_norm="post_norm1", mlp_norm="post_attention_layernorm", mlp_post_norm="post_norm2"
    ),
)
