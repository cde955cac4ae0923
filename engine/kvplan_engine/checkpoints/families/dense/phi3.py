"""Phi-3 and Phi-4: Llama with fused projections; in some models part of a head turns, in some there is a window."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama
from kvplan_engine.checkpoints.families.family import LLAMA_CPP_NAMES, Family, Gguf
from kvplan_engine.checkpoints.fields import window
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription


def _read(config: dict[str, Any]) -> ModelDescription:
    no_bias = {"qkv_bias": False, "output_bias": False}
    return llama(config, kept=window(config.get("sliding_window")), max_positions=4096, **no_bias)


def _gguf_keys(own: dict[str, Any]) -> dict[str, Any]:
    """A part of each head turns in Phi-4-mini."""
    size = int(own["embedding_length"]) // int(own["attention.head_count"])
    return {
        "sliding_window": own.get("attention.sliding_window"),
        "partial_rotary_factor": int(own.get("rope.dimension_count", size)) / size,
    }


PHI3 = Family(
    architectures=("Phi3ForCausalLM",),
    model_types=("phi3",),
    read=_read,
    names=TensorNames(qkv=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",)),
    gguf=Gguf("phi3", replace(LLAMA_CPP_NAMES, qkv=("attn_qkv",), up=("ffn_up",)), keys=_gguf_keys),
)
PHI4_MULTIMODAL = Family(
    architectures=("Phi4MMForCausalLM",),
    model_types=("phi4mm",),
    read=_read,
    names=TensorNames(
        qkv=("self_attn.qkv_proj.base_layer",),
        output="self_attn.o_proj.base_layer",
        up=("mlp.gate_up_proj.base_layer",),
        down="mlp.down_proj.base_layer",
    ),
)
"""Its checkpoints keep adapters for images and speech beside the text's weights, which text does without."""
