"""OLMo: Llama with a LayerNorm that has no parameters. OLMo 2: norms behind the blocks, and across all heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama_layer
from kvplan_engine.checkpoints.families.family import LLAMA_CPP_NAMES, Family, Gguf
from kvplan_engine.checkpoints.fields import decoder
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.norms import Norms


def _read_olmo(config: dict[str, Any]) -> ModelDescription:
    layer = replace(llama_layer(config, clip=config.get("clip_qkv")), norms=Norms("none", 1e-5))
    return decoder(config, [layer] * int(config["num_hidden_layers"]), layer.norms)


def _read_olmo2(config: dict[str, Any]) -> ModelDescription:
    norms = Norms("rms", float(config.get("rms_norm_eps", 1e-5)), "after")
    layer = replace(llama_layer(config, head_norm="all"), norms=norms)
    return decoder(config, [layer] * int(config["num_hidden_layers"]), norms)


OLMO = Family(("OlmoForCausalLM",), ("olmo",), _read_olmo, TensorNames())
OLMO2 = Family(
    ("Olmo2ForCausalLM",),
    ("olmo2",),
    _read_olmo2,
    TensorNames(),
    gguf=Gguf(
        "olmo2",
        replace(LLAMA_CPP_NAMES, attention_post_norm="post_attention_norm", mlp_post_norm="post_ffw_norm"),
    ),
)
