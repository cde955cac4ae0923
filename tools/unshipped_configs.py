"""Configs for architectures and formats of which no published file could be read: shapes of the tests' own.

They are not the shapes of any published model, and no profile is made of them.
"""

from __future__ import annotations

from typing import Any

_AWQ = {"bits": 4, "group_size": 128, "quant_method": "awq", "version": "gemm", "zero_point": True}


def with_awq(config: dict[str, Any]) -> dict[str, Any]:
    """``config`` as AutoAWQ writes it: four bits in groups of 128 with zero points, the head left as it is."""
    return {**config, "quantization_config": {**_AWQ, "modules_to_not_convert": None}, "torch_dtype": "float16"}


GRANITE_MIXTURE: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "hidden_size": 256,
    "intermediate_size": 96,
    "shared_intermediate_size": 192,
    "num_hidden_layers": 10,
    "layer_types": ["mamba"] * 5 + ["attention"] + ["mamba"] * 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "mamba_n_heads": 16,
    "mamba_d_head": 32,
    "mamba_d_state": 64,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "position_embedding_type": "nope",
    "tie_word_embeddings": True,
    "attention_bias": False,
    "torch_dtype": "bfloat16",
}
"""Granite 4's hybrid: Mamba-2 and attention, and a mixture with a shared expert in every layer."""
