"""Falcon 7B (one KV head), 11B, 40B and 180B (groups); the small ones that were trained with slopes (ALiBi)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import activation, attention, decoder, mlp, rope
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import NormPlaces, Norms


def _places(config: dict[str, Any], grouped: bool) -> NormPlaces:
    if not grouped and not config.get("parallel_attn", True):
        return "before"
    number = config.get("num_ln_in_parallel_attn") or (2 if grouped else 1)
    return "parallel_two" if grouped and int(number) == 2 else "parallel"


def _kv_heads(config: dict[str, Any], grouped: bool, heads: int) -> int:
    if grouped:
        return int(config.get("num_kv_heads") or config.get("n_head_kv") or heads)
    return 1 if config.get("multi_query", True) else heads


def _read(config: dict[str, Any]) -> ModelDescription:
    hidden = int(config["hidden_size"])
    heads = int(config.get("num_attention_heads") or config["n_head"])
    grouped = bool(config.get("new_decoder_architecture", False))
    keys = config | {"num_attention_heads": heads, "num_key_value_heads": _kv_heads(config, grouped, heads)}
    keys["intermediate_size"] = int(config.get("ffn_hidden_size") or 4 * hidden)
    norms = Norms("layer", float(config.get("layer_norm_epsilon", 1e-5)), _places(config, grouped))
    bias, alibi = bool(config.get("bias", False)), bool(config.get("alibi", False))
    own = attention(keys, rope=None if alibi else rope(keys), alibi=alibi, qkv_bias=bias, output_bias=bias)
    own = replace(own, alibi_scale=own.scale)  # slopes are added to the scores before these are scaled
    inner = mlp(keys, activation=activation(config.get("activation", "gelu")), gated=False, bias=bias)
    number = int(config.get("num_hidden_layers") or config["n_layer"])
    return decoder(keys, [Layer((own,), inner, norms)] * number, norms, tied=True)


FALCON = Family(
    architectures=("FalconForCausalLM", "RWForCausalLM"),
    model_types=("falcon",),
    read=_read,
    names=TensorNames(
        embedding="transformer.word_embeddings",
        layer="transformer.h.{}",
        qkv=("self_attention.query_key_value",),
        output="self_attention.dense",
        up=("mlp.dense_h_to_4h",),
        down="mlp.dense_4h_to_h",
        by_places={"parallel_two": {"attention_norm": "ln_attn", "mlp_norm": "ln_mlp"}},
        final_norm="transformer.ln_f",
        row_order="kv_heads",
    ),
)
