"""GLM-4 and GLM-4-0414: half of a head turns, neighbours paired; the later one has norms behind the blocks too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama_layer
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import decoder, rope
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import Layer, ModelDescription


def _layer(config: dict[str, Any]) -> Layer:
    keys = {"head_dim": 128, "attention_bias": True, "rms_norm_eps": 1.5625e-07} | config | {"mlp_bias": False}
    return llama_layer(keys, rope=rope(keys, partial=0.5, neighbours=True), output_bias=False)


def _read_glm(config: dict[str, Any]) -> ModelDescription:
    layer = _layer(config)
    return decoder(config, [layer] * int(config["num_hidden_layers"]), layer.norms, max_positions=131072)


def _read_glm4(config: dict[str, Any]) -> ModelDescription:
    layer = _layer(config)
    layer = replace(layer, norms=replace(layer.norms, places="both"))
    return decoder(config, [layer] * int(config["num_hidden_layers"]), layer.norms, max_positions=131072)


GLM = Family(("GlmForCausalLM",), ("glm",), _read_glm, TensorNames(up=("mlp.gate_up_proj",)))
GLM4 = Family(
    architectures=("Glm4ForCausalLM",),
    model_types=("glm4",),
    read=_read_glm4,
    names=TensorNames(
        up=("mlp.gate_up_proj",),
        attention_post_norm="post_self_attn_layernorm",
        mlp_norm="post_attention_layernorm",
        mlp_post_norm="post_mlp_layernorm",
    ),
)
