"""What transformers' classes take for keys that a nested text config leaves out, as published ones do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}

NESTED_DEFAULTS: dict[str, Mapping[str, Any]] = {
    "llama": _LLAMA,
    "mistral": {
        **_LLAMA,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
    },
    "cosmos3_edge_text": {
        "hidden_size": 2048,
        "intermediate_size": 9216,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 131072,
        "max_position_embeddings": 131072,
    },
    "emu3_text_model": {
        **_LLAMA,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "vocab_size": 184622,
        "max_position_embeddings": 9216,
    },
    "opt": {
        "hidden_size": 768,
        "ffn_dim": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
    },
    "qwen2": {"vocab_size": 151936, "max_position_embeddings": 32768},
    "gemma3_text": {
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
    },
    "gemma3n_text": {"vocab_size": 262400, "max_position_embeddings": 32768},
    "gemma4_text": {"vocab_size": 262144, "max_position_embeddings": 131072},
    "gemma4_unified_text": {
        "vocab_size": 262144,
        "max_position_embeddings": 262144,
        "sliding_window": 1024,
        "hidden_size_per_layer_input": 0,
    },
    "glm_ocr_text": {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 59392,
        "max_position_embeddings": 131072,
        "attention_bias": False,
    },
    "granite4_vision_text": _LLAMA,
}
"""By ``model_type`` of the text: LlamaConfig's, MistralConfig's, Qwen2Config's, Gemma3TextConfig's, and so on."""
