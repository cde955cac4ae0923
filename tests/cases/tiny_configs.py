"""Configs that no profile has: of small models, which nobody has trained, and of tests' own."""

from __future__ import annotations

from typing import Any

from data_rows import data_rows


def llama_config(**others: Any) -> dict[str, Any]:
    """Return a config of two layers with grouped heads of 16; ``others``: keys besides these, or instead of them."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 128,
        "max_position_embeddings": 128,
    } | others


def gpt2_config(**others: Any) -> dict[str, Any]:
    """Return a config of two layers with heads of 8; ``others``: keys besides these, or instead of them."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": 32,
        "n_head": 4,
        "n_layer": 2,
        "n_positions": 128,
        "vocab_size": 128,
    } | others


def own_config(name: str, **others: Any) -> dict[str, Any]:
    """Return a config of ``tests/data/own_configs.json``; ``others``: keys besides these, or instead of them."""
    config: dict[str, Any] = data_rows("own_configs")[name]
    return config | others


def with_awq(config: dict[str, Any]) -> dict[str, Any]:
    """Return ``config`` as AutoAWQ writes it: four bits in groups of 128 with zero points, the head left as it is."""
    awq = {"bits": 4, "group_size": 128, "quant_method": "awq", "version": "gemm", "zero_point": True}
    return {**config, "quantization_config": awq | {"modules_to_not_convert": None}, "torch_dtype": "float16"}
