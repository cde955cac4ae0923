"""GPT-2: learned positions, LayerNorm, biases everywhere, an MLP without a gate."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.config import ModelConfig
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import dtype_name, eos_token_ids, plain_activation
from kvplan_engine.checkpoints.parameters import TensorNames


def _read_config(config: dict[str, Any]) -> ModelConfig:
    hidden, heads = int(config["n_embd"]), int(config["n_head"])
    if hidden % heads:
        raise ValueError(f"n_embd {hidden} is not a multiple of n_head {heads}")
    return ModelConfig(
        architecture="GPT2LMHeadModel",
        num_layers=int(config["n_layer"]),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_size=hidden // heads,
        ffn_size=int(config.get("n_inner") or 4 * hidden),
        activation=plain_activation(config.get("activation_function", "gelu_new")),
        vocab_size=int(config["vocab_size"]),
        max_position_embeddings=int(config.get("n_positions") or config["n_ctx"]),
        norm_eps=float(config.get("layer_norm_epsilon", 1e-5)),
        layer_norm=True,
        head_norms=False,
        tie_word_embeddings=config.get("tie_word_embeddings", True) is not False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        dtype=dtype_name(config),
        window_tokens=None,
        rope=None,
        eos_token_ids=eos_token_ids(config),
    )


GPT2 = Family(
    architecture="GPT2LMHeadModel",
    model_type="gpt2",
    read_config=_read_config,
    names=TensorNames(
        embedding="wte",
        positions="wpe",
        layer="h.{}",
        qkv=("attn.c_attn",),
        output="attn.c_proj",
        up=("mlp.c_fc",),
        down="mlp.c_proj",
        attention_norm="ln_1",
        mlp_norm="ln_2",
        final_norm="ln_f",
        transposed=True,
    ),
    prefixes=("", "transformer."),
)
