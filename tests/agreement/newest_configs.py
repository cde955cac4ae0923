"""Small configs of the architectures that came last, for ``small_configs``. No published model has these shapes."""

from __future__ import annotations

from typing import Any

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_KINDS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"] * 2

NEWEST: dict[str, dict[str, Any]] = {
    "AliceAIForCausalLM": {
        "model_type": "alice_ai",
        **_EXPERTS,
        "head_dim": 24,
        "shared_expert_intermediate_size": 40,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2,
        "block_attn_res_block_size": 4,
        "router_bias_correction": True,
        "router_score_function": "sigmoid",
        "kda_allow_negative_eigenvalues": False,
    },
    "BeamForCausalLM": {
        "model_type": "beam",
        **_EXPERTS,
        "head_dim": 24,
        "sliding_window": 16,
        "layer_types": _KINDS,
        "mlp_layer_types": ["dense", *["sparse"] * 7],
        "n_group": 2,
        "topk_group": 1,
    },
    "DomynEdgeForCausalLM": {
        "model_type": "domynedge",
        "num_hidden_layers": 4,
        "position_layers": ["nope", "rope", "rope", "nope"],
        "window_sizes": [[-1, 0], [16, 0], [16, 0], [-1, 0]],
        "head_sizes": [32, 16, 16, 32],
        "tie_word_embeddings": True,
    },
    "DoryForCausalLM": {
        "model_type": "dory",
        "head_dim": 24,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp"] * 2,
        "n_input_layers": 2,
        "n_output_layers": 2,
        "n_recurrent_loops": 3,
    },
    "FlintForCausalLM": {
        "model_type": "flint",
        **_EXPERTS,
        "head_dim": 16,
        "shared_expert_intermediate_size": 40,
        "sliding_window": 17,
        "layer_types": _KINDS,
        "mlp_only_layers": [0, 1],
        "no_rope_layer_indices": [0, 3, 4, 7],
        "attention_bias": True,
    },
    "HrmTextForCausalLM": {
        "model_type": "hrm_text",
        "head_dim": 24,
        "num_key_value_heads": None,
        "num_hidden_layers": 18,
        "num_layers_per_stack": 3,
        "H_cycles": 2,
        "L_cycles": 2,
    },
    "IQuestLoopCoderForCausalLM": {"model_type": "iquestloopcoder", "loop_num": 3, "loop_window_size": 16},
    "K2HorizonForCausalLM": {
        "model_type": "k2_horizon",
        **_EXPERTS,
        "head_dim": 16,
        "num_shared_experts": 1,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [0, 1],
        "attention_bias": False,
        "attention_gate_func": "softplus",
        "query_key_norm": True,
        "moe_gate_bias": True,
        "mova_num_experts": 6,
        "mova_num_experts_per_tok": 2,
    },
    "Kolibri1ForCausalLM": {
        "model_type": "kolibri1",
        **_EXPERTS,
        "intermediate_size": None,
        "head_dim": 16,
        "sliding_window": 17,
        "shared_expert_intermediate_size": 40,
    },
    "NanbeigeForCausalLM": {"model_type": "nanbeige", "head_dim": 24, "num_loops": 2},
    "NemotronHPuzzleForCausalLM": {
        "model_type": "nemotron_h_puzzle",
        "num_hidden_layers": None,
        "head_dim": 16,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 8,
        "n_groups": 2,
        "conv_kernel": 4,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "moe_latent_size": 32,
        "moe_shared_expert_intermediate_size": 48,
        "block_configs": [
            {"block_type": "mamba"},
            {"block_type": "moe", "moe_intermediate_size": 24, "num_experts_per_tok": 2},
            {"block_type": "attention"},
            {"block_type": "moe", "moe_intermediate_size": 40, "num_experts_per_tok": 3},
            {"block_type": "attention", "sliding_window": 16},
            {"block_type": "mlp"},
        ],
    },
    "PanguProMoEV2ForCausalLM": {
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 2,
        "router_enable_expert_bias": True,
        "sandwich_norm": True,
        "qk_nope_dim": 16,
        "qk_rope_dim": 8,
        "v_channels": 16,
        "param_sink_number": 16,
        "param_sink_with_value": True,
        "interleaved_sliding_window": [16, 0],
    },
    "Step1ForCausalLM": {
        "model_type": "step1",
        "num_key_value_heads": None,
        "num_attention_groups": 2,
        "tie_word_embeddings": True,
    },
    "TeleChat2ForCausalLM": {
        "model_type": "telechat",
        "num_hidden_layers": None,
        "num_attention_heads": None,
        "intermediate_size": None,
        "max_position_embeddings": None,
        "n_layer": 3,
        "n_head": 4,
        "ffn_hidden_size": 96,
        "seq_length": 256,
    },
}
"""What each has beside the sizes that all small configs share; None takes one away."""

_MOONDREAM: dict[str, Any] = {
    "config": {
        "text": {
            "dim": 64,
            "ff_dim": 96,
            "n_layers": 6,
            "vocab_size": 128,
            "max_context": 256,
            "n_heads": 4,
            "n_kv_heads": 2,
            "moe": {"start_layer": 2, "n_experts": 4, "n_experts_per_tok": 2, "expert_inner_dim": 32},
        },
        "vision": {"enc_dim": 48, "enc_n_layers": 3, "enc_ff_dim": 72, "proj_inner_dim": 80, "crop_size": 56},
    }
}
NEWEST_OWN_TEXT: dict[str, dict[str, Any]] = {
    "HfMoondream": {**_MOONDREAM, "model_type": "moondream3"},
    "Moondream3ForCausalLM": {**_MOONDREAM, "model_type": "moondream3"},
}
"""Wrappers whose language model is no other architecture's."""

NEWEST_INNER: dict[str, dict[str, Any]] = {
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64, "tie_word_embeddings": True},
    "emu3_text_model": {},
    "cosmos3_edge_text": {"head_dim": 24, "hidden_act": "relu2"},
}
NEWEST_WRAPPED = {
    "Alpamayo2Super": "vlm_config.text_config:qwen3_vl_text",
    "Blip2ForConditionalGeneration": "text_config:opt",
    "Cosmos3EdgeForConditionalGeneration": "text_config:cosmos3_edge_text",
    "Emu3ForConditionalGeneration": "text_config:emu3_text_model",
    "MossAudioModel": "language_config:qwen3",
    "VibeVoiceAsrForConditionalGeneration": "text_config:qwen2",
}
"""Where the language model stands in a wrapper's config, and its type."""
