"""Llama: RoPE, RMSNorm, grouped KV heads, a gated MLP. Most dense families differ from it in a field or two."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.config import ModelConfig
from kvplan_engine.checkpoints.families.family import Family, Gguf
from kvplan_engine.checkpoints.fields import dtype_name, eos_token_ids, gated_activation, kv_heads, rope_parameters


def llama_config(
    config: dict[str, Any],
    architecture: str = "LlamaForCausalLM",
    *,
    qkv_bias: bool = False,
    head_norms: bool = False,
    window_tokens: int | None = None,
    max_positions: int = 2048,
) -> ModelConfig:
    """A config.json with Llama's keys. qkv_bias: also where the config has no ``attention_bias``.

    max_positions: where the config says nothing, the default of the family's class in transformers.
    """
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    attention_bias = bool(config.get("attention_bias", False))
    return ModelConfig(
        architecture=architecture,
        num_layers=int(config["num_hidden_layers"]),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads(config, heads),
        head_size=int(config.get("head_dim") or hidden // heads),
        ffn_size=int(config["intermediate_size"]),
        activation=gated_activation(config.get("hidden_act", "silu")),
        vocab_size=int(config["vocab_size"]),
        max_position_embeddings=int(config.get("max_position_embeddings") or max_positions),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        layer_norm=False,
        head_norms=head_norms,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=qkv_bias or attention_bias,
        output_bias=attention_bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        dtype=dtype_name(config),
        window_tokens=window_tokens,
        rope=rope_parameters(config),
        eos_token_ids=eos_token_ids(config),
    )


LLAMA = Family(
    architecture="LlamaForCausalLM",
    model_type="llama",
    read_config=llama_config,
    gguf=Gguf("llama", pairs_side_by_side=True, may_have_attention_bias=True),
)
