"""ChatGLM 2 and 3: Llama with fused projections, two KV heads, half of each head turning by neighbours."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import rope
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription


def _read(config: dict[str, Any]) -> ModelDescription:
    heads = int(config["num_attention_heads"])
    own: dict[str, Any] = {
        "num_hidden_layers": config["num_layers"],
        "intermediate_size": config["ffn_hidden_size"],
        "head_dim": config.get("kv_channels") or int(config["hidden_size"]) // heads,
        "num_key_value_heads": config.get("multi_query_group_num", 2) if config.get("multi_query_attention") else heads,
        "max_position_embeddings": config["seq_length"],
        "vocab_size": config.get("padded_vocab_size") or config["vocab_size"],
        "rms_norm_eps": config.get("layernorm_epsilon", 1e-5),
    }
    keys = config | own
    positions = rope(keys, theta=10000.0 * float(config.get("rope_ratio", 1.0)), partial=0.5, neighbours=True)
    bias = bool(config.get("add_bias_linear", False))
    qkv_bias = bias or bool(config.get("add_qkv_bias", False))
    return llama(keys | {"mlp_bias": bias}, rope=positions, qkv_bias=qkv_bias, output_bias=bias)


CHATGLM = Family(
    architectures=("ChatGLMModel", "ChatGLMForConditionalGeneration"),
    model_types=("chatglm",),
    read=_read,
    names=TensorNames(
        embedding="transformer.embedding.word_embeddings",
        layer="transformer.encoder.layers.{}",
        qkv=("self_attention.query_key_value",),
        output="self_attention.dense",
        up=("mlp.dense_h_to_4h",),
        down="mlp.dense_4h_to_h",
        final_norm="transformer.encoder.final_layernorm",
        head="transformer.output_layer",
    ),
)
