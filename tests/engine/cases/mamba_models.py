"""Small random models with Mamba's states and short convolutions, alone and among attention, MLPs and experts."""

from __future__ import annotations

from typing import Any

from dense_models import SIZES, Dense
from small_models import VOCAB_SIZE

_ALONE: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "vocab_size": VOCAB_SIZE,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "expand": 2,
    "state_size": 12,
}
_MAMBA2: dict[str, Any] = SIZES | {
    "num_hidden_layers": 4,
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_d_state": 24,
    "mamba_n_groups": 2,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
    "hidden_size": 48,
}
_GRANITE: dict[str, Any] = _MAMBA2 | {
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "shared_intermediate_size": 56,
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.6,
    "logits_scaling": 2.0,
}
_FALCON_H1: dict[str, Any] = _MAMBA2 | {
    "num_hidden_layers": 3,
    "mamba_d_ssm": 96,
    "attention_bias": True,
    "mlp_bias": True,
    "projectors_bias": True,
    "mamba_proj_bias": True,
    "embedding_multiplier": 2.0,
    "lm_head_multiplier": 0.7,
    "mlp_multipliers": [0.8, 1.3],
    "key_multiplier": 0.6,
    "attention_in_multiplier": 1.4,
    "attention_out_multiplier": 0.9,
    "ssm_multipliers": [0.9, 1.2, 0.7, 1.1, 0.8],
    "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.7,
}
_NEMOTRON: dict[str, Any] = SIZES | {
    "head_dim": 12,
    "hidden_size": 48,
    "mamba_num_heads": 6,
    "mamba_head_dim": 16,
    "ssm_state_size": 24,
    "n_groups": 2,
    "chunk_size": 8,
    "time_step_min": 1e-12,  # transformers keeps only a prompt's steps above it, not those of decoding
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 1.5,
}
_JAMBA: dict[str, Any] = SIZES | {
    "num_hidden_layers": 4,
    "hidden_size": 48,
    "attn_layer_period": 4,
    "attn_layer_offset": 2,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "mamba_d_state": 12,
    "mamba_dt_rank": 5,
}
_LFM2: dict[str, Any] = SIZES | {
    "num_hidden_layers": 4,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
    "tie_word_embeddings": True,
}

MAMBA: dict[str, Dense] = {
    "mamba": Dense("MambaConfig", _ALONE),
    "falcon-mamba": Dense("FalconMambaConfig", _ALONE | {"mixer_rms_eps": 1e-3, "use_bias": True}),
    "mamba2": Dense("Mamba2Config", _ALONE | {"num_heads": 6, "head_dim": 16, "n_groups": 2, "chunk_size": 8}),
    "jamba": Dense("JambaConfig", _JAMBA),
    "bamba": Dense("BambaConfig", _MAMBA2 | {"attn_layer_indices": [2], "time_step_limit": [0.3, 0.9]}),
    "granite-hybrid": Dense("GraniteMoeHybridConfig", _GRANITE | {"num_local_experts": 0}),
    "granite-hybrid-moe": Dense(
        "GraniteMoeHybridConfig",
        _GRANITE | {"num_local_experts": 6, "num_experts_per_tok": 2, "position_embedding_type": "rope"},
    ),
    "falcon-h1": Dense("FalconH1Config", _FALCON_H1),
    "falcon-h1-norm": Dense("FalconH1Config", _FALCON_H1 | {"mamba_rms_norm": True, "mamba_norm_before_gate": True}),
    "nemotron-h": Dense("NemotronHConfig", _NEMOTRON | {"hybrid_override_pattern": "M-M*-"}),
    "nemotron-3": Dense("NemotronHConfig", _NEMOTRON | {"hybrid_override_pattern": "MEM*E"}),
    "nemotron-3-latent": Dense(
        "NemotronHConfig", _NEMOTRON | {"hybrid_override_pattern": "ME*M", "moe_latent_size": 20}
    ),
    "lfm2": Dense("Lfm2Config", _LFM2),
    "lfm2-moe": Dense(
        "Lfm2MoeConfig",
        _LFM2 | {"num_dense_layers": 1, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    ),
}
