"""InternLM 2 (one matrix of groups for queries, keys and values) and InternLM 3: Llama with biases by two switches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama, llama_layer
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import decoder, mlp
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription


def _read_internlm2(config: dict[str, Any]) -> ModelDescription:
    bias = bool(config.get("bias", False))
    return llama(config, qkv_bias=bias, output_bias=bias)


def _read_internlm3(config: dict[str, Any]) -> ModelDescription:
    bias = bool(config.get("bias", False))
    config = {"head_dim": 128} | config
    layer = llama_layer(config, qkv_bias=bool(config.get("qkv_bias", False)), output_bias=bias)
    layers = [replace(layer, feed_forward=mlp(config, bias=bias))] * int(config["num_hidden_layers"])
    return decoder(config, layers, layer.norms, max_positions=32768)


INTERNLM2 = Family(
    architectures=("InternLM2ForCausalLM",),
    model_types=("internlm2",),
    read=_read_internlm2,
    names=TensorNames(
        embedding="model.tok_embeddings",
        qkv=("attention.wqkv",),
        output="attention.wo",
        up=("feed_forward.w1", "feed_forward.w3"),
        down="feed_forward.w2",
        attention_norm="attention_norm",
        mlp_norm="ffn_norm",
        head="output",
        row_order="kv_heads",
    ),
)
INTERNLM3 = Family(("InternLM3ForCausalLM",), ("internlm3",), _read_internlm3, TensorNames())
