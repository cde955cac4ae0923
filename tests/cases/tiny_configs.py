"""Configs of small models, which nobody has trained."""

from __future__ import annotations

from typing import Any


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
