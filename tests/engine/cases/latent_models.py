"""Small random models with latent attention, one of each family that runs."""

from __future__ import annotations

from typing import Any

from dense_models import SIZES, Dense

_SIZES: dict[str, Any] = SIZES | {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "q_lora_rank": 40,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
_DENSE = _SIZES | {"intermediate_size": 96}
_EXPERTS = _DENSE | {
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "n_group": 4,
    "topk_group": 2,
}
_INDEX = {"index_n_heads": 8, "index_head_dim": 16, "index_topk": 12}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
_MSCALE = {"mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1}

LATENTS: dict[str, Dense] = {
    "deepseek_v2": Dense(
        "DeepseekV2Config",
        _EXPERTS
        | {"topk_method": "group_limited_greedy", "norm_topk_prob": False}
        | {"rope_parameters": _YARN | _MSCALE | {"mscale": 0.707, "mscale_all_dim": 0.707}},
    ),
    "deepseek_v2_lite": Dense(
        "DeepseekV2Config",
        _EXPERTS | {"q_lora_rank": None, "topk_method": "greedy", "attention_bias": True, "n_shared_experts": 2},
    ),
    "deepseek_v3": Dense("DeepseekV3Config", _EXPERTS | {"rope_parameters": _YARN | _MSCALE, "attention_bias": True}),
    "glm4_moe_lite": Dense("Glm4MoeLiteConfig", _EXPERTS | {"n_group": 1, "topk_group": 1, "rms_norm_eps": 1e-5}),
    "mistral4": Dense(
        "Mistral4Config",
        _EXPERTS | {"rope_parameters": _YARN | _MSCALE | {"llama_4_scaling_beta": 0.1}, "rope_interleave": True},
    ),
    "deepseek_v32": Dense("DeepseekV32Config", _EXPERTS | _INDEX | {"rope_parameters": _YARN | _MSCALE}),
    "glm_moe_dsa": Dense(
        "GlmMoeDsaConfig",
        _EXPERTS | _INDEX | {"n_group": 1, "topk_group": 1, "indexer_types": ["full", "shared", "full"]},
    ),
    "minicpm3": Dense(
        "MiniCPM3Config",
        _DENSE | {"scale_depth": 1.4, "scale_emb": 12, "dim_model_base": 16, "tie_word_embeddings": True},
    ),
    "youtu": Dense("YoutuConfig", _DENSE | {"rope_interleave": False, "tie_word_embeddings": True}),
}
