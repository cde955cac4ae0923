"""Small random models with experts, one of each family that runs."""

from __future__ import annotations

from typing import Any

from dense_models import SIZES, Dense

_SIZES: dict[str, Any] = SIZES | {"num_hidden_layers": 3}
_WIDE = _SIZES | {"intermediate_size": 40}
_NARROW = _SIZES | {"intermediate_size": 96, "moe_intermediate_size": 24}

MIXTURES: dict[str, Dense] = {
    "mixtral": Dense("MixtralConfig", _WIDE | {"num_local_experts": 6, "num_experts_per_tok": 2}),
    "minimax_m2": Dense(
        "MiniMaxM2Config",
        _WIDE
        | {"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 32}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "qwen2_moe": Dense(
        "Qwen2MoeConfig",
        _NARROW
        | {"num_experts": 8, "num_experts_per_tok": 3, "shared_expert_intermediate_size": 56, "mlp_only_layers": [1]},
    ),
    "qwen3_moe": Dense(
        "Qwen3MoeConfig",
        _NARROW | {"num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True, "head_dim": 24},
    ),
    "olmoe": Dense("OlmoeConfig", _WIDE | {"num_experts": 8, "num_experts_per_tok": 3}),
    "flex_olmo": Dense("FlexOlmoConfig", _WIDE | {"num_experts": 8, "num_experts_per_tok": 3}),
    "glm4_moe": Dense(
        "Glm4MoeConfig",
        _NARROW
        | {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2, "use_qk_norm": True}
        | {"first_k_dense_replace": 1, "n_shared_experts": 1, "routed_scaling_factor": 1.5, "head_dim": 32},
    ),
    "dots1": Dense(
        "Dots1Config",
        _NARROW
        | {"n_routed_experts": 8, "num_experts_per_tok": 3, "first_k_dense_replace": 1, "n_shared_experts": 2}
        | {"norm_topk_prob": True, "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1, "sliding_window": None},
    ),
    "hy_v3": Dense(
        "HYV3Config",
        _NARROW
        | {"num_local_experts": 8, "num_experts_per_tok": 3, "num_shared_experts": 1, "router_scaling_factor": 2.0}
        | {"head_dim": 16},
    ),
    "ernie4_5_moe": Dense(
        "Ernie4_5_MoeConfig",
        _NARROW
        | {"moe_num_experts": 8, "moe_k": 3, "moe_num_shared_experts": 1, "moe_layer_start_index": 1}
        | {"moe_layer_end_index": -1, "moe_layer_interval": 1, "tie_word_embeddings": True},
    ),
    "ernie4_5_moe-biases": Dense(
        "Ernie4_5_MoeConfig",
        _NARROW
        | {"moe_num_experts": 8, "moe_k": 3, "moe_num_shared_experts": 3, "moe_layer_start_index": 1}
        | {"moe_layer_end_index": -1, "moe_layer_interval": 1, "tie_word_embeddings": False, "use_bias": True},
    ),
    "granitemoe": Dense(
        "GraniteMoeConfig",
        _WIDE
        | {"num_local_experts": 8, "num_experts_per_tok": 3, "attention_multiplier": 0.2}
        | {"embedding_multiplier": 3.0, "residual_multiplier": 0.6, "logits_scaling": 2.0},
    ),
    "granitemoeshared": Dense(
        "GraniteMoeSharedConfig",
        _WIDE | {"num_local_experts": 8, "num_experts_per_tok": 3, "shared_intermediate_size": 72},
    ),
    "hunyuan_v1_moe": Dense(
        "HunYuanMoEV1Config",
        _WIDE | {"num_experts": 8, "moe_topk": 3, "head_dim": 16, "num_shared_expert": 1},
    ),
    "phimoe": Dense(
        "PhimoeConfig",
        _WIDE
        | {"num_local_experts": 6, "num_experts_per_tok": 2, "attention_bias": True, "lm_head_bias": True}
        | {"router_jitter_noise": 0.1, "sliding_window": None},
    ),
}
