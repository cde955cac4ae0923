"""Small random models of the families with gated delta rules, beside attention of every kind."""

from __future__ import annotations

from typing import Any

from dense_models import SIZES, Dense

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
}
