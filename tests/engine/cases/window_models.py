"""Small random models of the families whose layers keep different tokens."""

from __future__ import annotations

from typing import Any

from dense_models import SIZES, Dense
from small_models import VOCAB_SIZE

_FULL, _SLIDING = "full_attention", "sliding_attention"
_GEMMA: dict[str, Any] = SIZES | {
    "head_dim": 24,
    "num_hidden_layers": 5,
    "sliding_window": 20,
    "layer_types": [_SLIDING, _SLIDING, _FULL, _SLIDING, _FULL],
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 20,
}
_PERIOD: dict[str, Any] = SIZES | {
    "num_hidden_layers": 4,
    "sliding_window": 20,
    "layer_types": [_SLIDING, _SLIDING, _SLIDING, _FULL],
}
_NEO: dict[str, Any] = {
    "hidden_size": 64,
    "num_heads": 4,
    "num_layers": 3,
    "attention_types": [[["global", "local", "local"], 1]],
    "window_size": 20,
    "intermediate_size": 80,
    "max_position_embeddings": 256,
    "vocab_size": VOCAB_SIZE,
    "bos_token_id": 0,
    "eos_token_id": 0,
}

_GPT_OSS: dict[str, Any] = SIZES | {
    "head_dim": 16,
    "num_hidden_layers": 4,
    "sliding_window": 20,
    "layer_types": [_SLIDING, _FULL, _SLIDING, _FULL],
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "truncate": False,
    },
}

_MIXTURE: dict[str, Any] = _PERIOD | {
    "moe_intermediate_size": 24,
    "num_experts": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "num_shared_experts": 1,
    "shared_intermediate_size": 48,
}
_GRANITE: dict[str, Any] = {
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.6,
    "logits_scaling": 2.0,
    "layer_rope_theta": [1e4, 5e5, 0, 1e4],
}

_GEMMA4: dict[str, Any] = _GEMMA | {
    "head_dim": 16,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": VOCAB_SIZE,
}
_GEMMA4_INPUTS: dict[str, Any] = {
    "num_hidden_layers": 6,
    "layer_types": [_SLIDING, _SLIDING, _FULL, _SLIDING, _SLIDING, _FULL],
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 12,
}

WINDOWED: dict[str, Dense] = {
    "gemma2": Dense("Gemma2Config", _GEMMA | {"attn_logit_softcapping": 8.0, "final_logit_softcapping": 12.0}),
    "gemma3": Dense("Gemma3TextConfig", _GEMMA),
    "olmo3": Dense("Olmo3Config", _PERIOD),
    "exaone4": Dense("Exaone4Config", _PERIOD),
    "cohere2": Dense("Cohere2Config", _PERIOD | {"tie_word_embeddings": True, "logit_scale": 0.3}),
    "cohere2-moe": Dense(
        "Cohere2MoeConfig",
        _MIXTURE | {"head_dim": 16, "layer_types": None, "first_k_dense_replace": 1, "sliding_window_pattern": 3},
    ),
    "cohere2-moe-sum": Dense(
        "Cohere2MoeConfig",
        _MIXTURE
        | {"head_dim": 16, "expert_selection_fn": "sigmoid", "shared_expert_combination_strategy": "sum"}
        | {"rms_norm_eps": 1e-6},
    ),
    "exaone-moe": Dense("ExaoneMoeConfig", _MIXTURE | {"n_group": 4, "topk_group": 2}),
    "granite-swa": Dense("GraniteSWAConfig", _PERIOD | _GRANITE),
    "granite-moe-swa": Dense("GraniteMoeSWAConfig", _MIXTURE | _GRANITE),
    "gemma4": Dense("Gemma4TextConfig", _GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 1}),
    "gemma4-shared": Dense("Gemma4TextConfig", _GEMMA4 | _GEMMA4_INPUTS),
    "gemma4-mixture": Dense(
        "Gemma4TextConfig",
        _GEMMA4
        | {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 24}
        | {"final_logit_softcapping": 12.0},
    ),
    "afmoe": Dense("AfmoeConfig", _MIXTURE | {"head_dim": 16, "num_dense_layers": 1, "mup_enabled": True}),
    "laguna": Dense(
        "LagunaConfig",
        _MIXTURE
        | {"head_dim": 16, "num_attention_heads_per_layer": [4, 6, 4, 6], "shared_expert_intermediate_size": 40}
        | {"moe_routed_scaling_factor": 1.5},
    ),
    "laguna-elements": Dense("LagunaConfig", _MIXTURE | {"head_dim": 16, "gating": "per-element"}),
    "mimo-v2": Dense(
        "MiMoV2FlashConfig",
        _MIXTURE | {"head_dim": 24, "v_head_dim": 16, "n_routed_experts": 8, "n_group": 4, "topk_group": 2},
    ),
    "gpt-oss": Dense("GptOssConfig", _GPT_OSS),
    "gpt-neo": Dense("GPTNeoConfig", _NEO),
}
