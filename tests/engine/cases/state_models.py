"""Small random models of the families with gated delta rules, beside attention of every kind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from dense_models import SIZES, Dense
from safetensors.torch import load_file, save_file

_DELTA: dict[str, Any] = SIZES | {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 12,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}

STATES: dict[str, Dense] = {
    "qwen3_5": Dense("Qwen3_5TextConfig", _DELTA),
    "qwen3_5-moe": Dense("Qwen3_5MoeTextConfig", _DELTA | _EXPERTS),
    "qwen3_next": Dense("Qwen3NextConfig", _DELTA | _EXPERTS | {"mlp_only_layers": [1]}),
    # as wide in keys as in values: transformers' conversion cuts the convolution in three equal parts
    "olmo_hybrid": Dense("OlmoHybridConfig", {**_DELTA, "linear_value_head_dim": 12}),
    "kimi_linear": Dense(
        "KimiLinearConfig",
        SIZES
        | {"num_hidden_layers": 4, "num_key_value_heads": 4, "linear_num_heads": 3, "linear_head_dim": 20}
        | {"layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"]}
        | {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
        | {
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
}


_MEANT_FOR_OTHERS = {
    "olmo_hybrid": (re.compile(r"(layers\.3\.)feedforward_layer_norm"), r"\1post_attention_layernorm"),
    "kimi_linear": (re.compile(r"block_sparse_moe\.(\w+_proj)"), r"mlp.\1"),
}
"""What transformers' conversion also applies to layers whose tensors are not called so: of attention, of dense MLPs."""


def as_published(name: str, folder: Path) -> None:
    """Give the tensors of a saved checkpoint the names that published ones have."""
    if name in _MEANT_FOR_OTHERS:
        pattern, ours = _MEANT_FOR_OTHERS[name]
        file = folder / "model.safetensors"
        save_file({pattern.sub(ours, key): tensor for key, tensor in load_file(file).items()}, file)
