"""A small config of every architecture that ships no profile. They are not the shapes of any published model."""

from __future__ import annotations

from typing import Any

_SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_shared_experts": 1}
_LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
}
_LATENT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
_MAMBA2 = {
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "head_dim": 16,
}
_QWEN4 = {
    **_DELTA,
    **{key: value for key, value in _EXPERTS.items() if key != "num_shared_experts"},
    "shared_expert_intermediate_size": 40,
    "mamba_ssm_dtype": "float32",
    "hc_count": 3,
    "hc_lowrank": 20,
    "ple_layer_ids": [2, 5],
    "ple_embed_dim": 48,
    "ple_conv_kernel_size": 3,
    "ngram_size": 4,
    "heads_per_ngram": 4,
    "ngram_vocab_size_base": 1000,
    "make_ngram_vocab_size_divisible_by": 32,
    "indexer_n_heads": 3,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 32,
    "indexer_compress_ratio": 4,
}
_T5 = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 3, "num_heads": 4, "feed_forward_proj": "gated-gelu"}
_GPT = {"n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 256, "rotary_dim": 8}
_GPT |= dict.fromkeys(("num_hidden_layers", "num_key_value_heads"))
_SPARSE = {"sparse_attention_freq": [0, 1, 1, 1] * 2, "sparse_num_index_heads": 2, "sparse_index_dim": 16}
_SPARSE |= {"sparse_topk_blocks": 2, "sparse_block_size": 32}
_ZAMBA = {
    "num_key_value_heads": 4,
    "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "mamba", "hybrid", "mamba", "mamba"],
    "n_mamba_heads": 4,
    "mamba_d_state": 16,
    "mamba_ngroups": 2,
    "adapter_rank": 8,
    "num_mem_blocks": 2,
}
_MINIMAX_M3 = {
    **_LOCAL_EXPERTS,
    "head_dim": 16,
    "rotary_dim": 8,
    "dense_intermediate_size": 80,
    "shared_intermediate_size": 48,
    "moe_layer_freq": [0, 1, 1, 1] * 2,
    "sparse_attention_config": _SPARSE,
}
_STEP = {
    "head_dim": 16,
    "num_attention_groups": 2,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"] * 2,
    "sliding_window": 16,
    "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 2},
    "moe_layers_enum": "3,4,5,6,7",
    "moe_num_experts": 4,
    "moe_top_k": 2,
    "moe_intermediate_size": 32,
    "share_expert_dim": 40,
}
_STEP3 = {
    "head_dim": 16,
    "num_key_value_heads": None,
    "share_q_dim": 24,
    "moe_layers_enum": "1,3,5",
    "moe_num_experts": 4,
    "moe_top_k": 2,
    "moe_intermediate_size": 32,
    "share_expert_dim": 40,
}
_MIMO = {
    "head_dim": 24,
    "v_head_dim": 16,
    "swa_num_key_value_heads": 4,
    "swa_num_attention_heads": 4,
    "swa_head_dim": 24,
    "swa_v_head_dim": 16,
    "sliding_window": 16,
    "hybrid_layer_pattern": [0, 1, 1, 1] * 2,
    "moe_layer_freq": [0] + [1] * 7,
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "layernorm_epsilon": 1e-5,
    **{key: value for key, value in _ROUTED.items() if key != "n_shared_experts"},
}
_WINDOWS: dict[str, dict[str, Any]] = {
    "AfmoeForCausalLM": {
        "model_type": "afmoe",
        **_EXPERTS,
        "head_dim": 16,
        "sliding_window": 16,
        "num_dense_layers": 2,
    },
    "Cohere2MoeForCausalLM": {"model_type": "cohere2_moe", **_EXPERTS, "sliding_window": 16},
    "ExaoneMoEForCausalLM": {"model_type": "exaone_moe", **_EXPERTS, "sliding_window": 16},
    "ExaoneMoeForCausalLM": {"model_type": "exaone_moe", **_EXPERTS, "sliding_window": 16},
    "Gemma4ForCausalLM": {
        "model_type": "gemma4_text",
        "head_dim": 16,
        "global_head_dim": 32,
        "sliding_window": 16,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 128,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "tie_word_embeddings": True,
    },
    "GraniteSWAForCausalLM": {"model_type": "granite_swa", "sliding_window": 16},
    "GraniteMoeSWAForCausalLM": {
        "model_type": "granitemoe_swa",
        **_LOCAL_EXPERTS,
        "shared_intermediate_size": 48,
        "sliding_window": 16,
    },
    "LagunaForCausalLM": {
        "model_type": "laguna",
        **_EXPERTS,
        "shared_expert_intermediate_size": 40,
        "head_dim": 16,
        "layer_types": ["full_attention", "sliding_attention"] * 4,
        "num_attention_heads_per_layer": [4, 6] * 4,
        "sliding_window": 16,
    },
    "Llama4ForCausalLM": {
        "model_type": "llama4_text",
        **_LOCAL_EXPERTS,
        "intermediate_size_mlp": 80,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 32,
        "head_dim": 16,
    },
    "MiMoV2ForCausalLM": {"model_type": "mimo_v2", **_MIMO},
    "MinistralForCausalLM": {"model_type": "ministral", "head_dim": 16, "sliding_window": 16},
    "Step3TextForCausalLM": {"model_type": "step3_text", **_STEP3},
    "Step3p5ForCausalLM": {"model_type": "step3p5", **_STEP},
    "Step3p7FlashForCausalLM": {"model_type": "step3p7_text", **_STEP},
}
_LATENTS: dict[str, dict[str, Any]] = {
    "DeepseekV4ForConditionalGeneration": {
        "model_type": "deepseek_v4",
        **_ROUTED,
        "head_dim": 16,
        "num_key_value_heads": 1,
        "q_lora_rank": 24,
        "o_lora_rank": 8,
        "o_groups": 2,
        "qk_rope_head_dim": 8,
        "index_n_heads": 2,
        "index_head_dim": 16,
        "index_topk": 8,
        "sliding_window": 16,
        "compress_ratios": [0, 0, 4, 128, 4, 128, 4, 128],
        "num_hash_layers": 1,
        "vision_n_layers": 2,
    },
    "Glm4MoeLiteForCausalLM": {"model_type": "glm4_moe_lite", **_LATENT, **_ROUTED},
    "LongcatFlashForCausalLM": {
        "model_type": "longcat_flash",
        **_LATENT,
        "num_layers": 3,
        "num_hidden_layers": None,
        "intermediate_size": None,
        "num_key_value_heads": None,
        "ffn_hidden_size": 96,
        "expert_ffn_hidden_size": 32,
        "n_routed_experts": 4,
        "zero_expert_num": 2,
        "moe_topk": 2,
    },
    "MistralLarge3ForCausalLM": {
        "model_type": "deepseek_v3",
        **_LATENT,
        **_ROUTED,
        "scoring_func": "softmax",
        "topk_method": None,
    },
    "SarvamMLAForCausalLM": {
        "model_type": "sarvam_mla",
        **_LATENT,
        **_EXPERTS,
        "q_lora_rank": None,
        "moe_shared_expert_intermediate_size": 40,
        "moe_layer_freq": 2,
    },
    "YoutuForCausalLM": {"model_type": "youtu", **_LATENT},
}
_STATES: dict[str, dict[str, Any]] = {
    "BailingMoeV2_5ForCausalLM": {
        "model_type": "bailing_hybrid",
        **_LATENT,
        **_EXPERTS,
        "num_key_value_heads": 4,
        "first_k_dense_replace": 1,
        "layer_group_size": 4,
        "use_qk_norm": True,
        "moe_router_enable_expert_bias": True,
    },
    "BailingMoeV3ForCausalLM": {
        "model_type": "bailing_hybrid",
        **_LATENT,
        **_EXPERTS,
        "num_key_value_heads": 4,
        "first_k_dense_replace": 1,
        "layer_group_size": 3,
        "no_kda_lora": True,
        "gated_attention_proj_granularity_type": "head_wise",
    },
    "BambaForCausalLM": {"model_type": "bamba", **_MAMBA2, "attn_layer_indices": [2, 5]},
    "FalconH1ForCausalLM": {"model_type": "falcon_h1", **_MAMBA2, "mamba_d_ssm": 128, "head_dim": 16},
    "GraniteMoeHybridForCausalLM": {
        "model_type": "granitemoehybrid",
        **_MAMBA2,
        **_LOCAL_EXPERTS,
        "shared_intermediate_size": 48,
        "layer_types": ["mamba", "mamba", "attention", "mamba"] * 2,
    },
    "Lfm2MoeForCausalLM": {
        "model_type": "lfm2_moe",
        **{key: value for key, value in _EXPERTS.items() if key != "num_shared_experts"},
        "num_dense_layers": 2,
        "layer_types": ["conv", "conv", "full_attention", "conv"] * 2,
        "conv_L_cache": 3,
        "use_expert_bias": True,
    },
    "MiniMaxForCausalLM": {
        "model_type": "minimax",
        **_LOCAL_EXPERTS,
        "head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"] * 4,
    },
    "OlmoHybridForCausalLM": {"model_type": "olmo_hybrid", "num_key_value_heads": 4},
    "Qwen3_5ForCausalLM": {"model_type": "qwen3_5_text", **_DELTA, "mamba_ssm_dtype": "float32"},
    "Qwen3_5MoeForCausalLM": {
        "model_type": "qwen3_5_moe_text",
        **_DELTA,
        **{key: value for key, value in _EXPERTS.items() if key != "num_shared_experts"},
        "shared_expert_intermediate_size": 40,
    },
    "Qwen4ExpForCausalLM": {"model_type": "qwen4_exp_text", **_QWEN4},
    "Zamba2ForCausalLM": {"model_type": "zamba2", **_ZAMBA, "tie_word_embeddings": True},
}
_OTHERS: dict[str, dict[str, Any]] = {
    "ApertusForCausalLM": {"model_type": "apertus"},
    "AquilaForCausalLM": {"model_type": "aquila"},
    "ArceeForCausalLM": {"model_type": "arcee"},
    "BaiChuanForCausalLM": {"model_type": "baichuan"},
    "BaichuanForCausalLM": {"model_type": "baichuan"},
    "BailingMoeForCausalLM": {"model_type": "bailing_moe", **_EXPERTS, "first_k_dense_replace": 1},
    "BailingMoeV2ForCausalLM": {"model_type": "bailing_moe_v2", **_EXPERTS, "first_k_dense_replace": 1},
    "ChatGLMForConditionalGeneration": {
        "model_type": "chatglm",
        "ffn_hidden_size": 96,
        "num_layers": 3,
        "kv_channels": 16,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "padded_vocab_size": 128,
        "seq_length": 256,
        "add_qkv_bias": True,
        "num_hidden_layers": None,
    },
    "CodeGenForCausalLM": {"model_type": "codegen", **_GPT},
    "Dots1ForCausalLM": {"model_type": "dots1", **_ROUTED},
    "Ernie4_5ForCausalLM": {"model_type": "ernie4_5"},
    "ExaoneForCausalLM": {"model_type": "exaone", "num_layers": 3},
    "FlexOlmoForCausalLM": {"model_type": "flex_olmo", "num_experts": 4, "num_experts_per_tok": 2},
    "Glm4ForCausalLM": {"model_type": "glm4", "head_dim": 16},
    "GraniteMoeForCausalLM": {"model_type": "granitemoe", **_LOCAL_EXPERTS},
    "GraniteMoeSharedForCausalLM": {
        "model_type": "granitemoeshared",
        **_LOCAL_EXPERTS,
        "shared_intermediate_size": 48,
    },
    "HYV3ForCausalLM": {"model_type": "hy_v3", **_EXPERTS, "head_dim": 32},
    "HeliumForCausalLM": {"model_type": "helium", "head_dim": 16},
    "HunYuanDenseV1ForCausalLM": {"model_type": "hunyuan_v1_dense"},
    "HunYuanMoEV1ForCausalLM": {"model_type": "hunyuan_v1_moe", "num_experts": 4, "moe_topk": 2},
    "HyperCLOVAXForCausalLM": {"model_type": "hyperclovax"},
    "InternLM3ForCausalLM": {"model_type": "internlm3"},
    "IQuestCoderForCausalLM": {"model_type": "iquestcoder"},
    "LLaMAForCausalLM": {"model_type": "llama"},
    "MiniCPMForCausalLM": {"model_type": "minicpm"},
    "Ministral3ForCausalLM": {"model_type": "ministral3", "head_dim": 16},
    "MptForCausalLM": {
        "model_type": "mpt",
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 3,
        "max_seq_len": 256,
        "num_hidden_layers": None,
        "tie_word_embeddings": True,
    },
    "NemotronForCausalLM": {"model_type": "nemotron"},
    "OlmoForCausalLM": {"model_type": "olmo"},
    "OlmoeForCausalLM": {"model_type": "olmoe", "num_experts": 4, "num_experts_per_tok": 2},
    "OrionForCausalLM": {"model_type": "orion"},
    "Param2MoEForCausalLM": {
        "model_type": "param2moe",
        **_EXPERTS,
        "num_shared_experts": 2,
        "moe_shared_expert_intermediate_size": 64,
        "use_qk_norm": True,
    },
    "Phi4MMForCausalLM": {"model_type": "phi4mm"},
    "PhimoeForCausalLM": {"model_type": "phimoe", **_LOCAL_EXPERTS},
    "RWForCausalLM": {"model_type": "RefinedWeb", "n_head": 4, "n_layer": 3, "alibi": False},
    "SarvamMoEForCausalLM": {"model_type": "sarvam_moe", **_EXPERTS, "first_k_dense_replace": 1, "use_qk_norm": True},
    "SolarForCausalLM": {"model_type": "solar", "sliding_window": 16},
    "TeleChat3ForCausalLM": {"model_type": "telechat3"},
    "MiniMaxM3ForCausalLM": {"model_type": "minimax_m3", **_MINIMAX_M3},
    "MiniMaxM3SparseForCausalLM": {"model_type": "minimax_m3", **_MINIMAX_M3},
}
_NOT_T5 = dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"))
_ENCODERS: dict[str, dict[str, Any]] = {
    "MT5ForConditionalGeneration": {"model_type": "mt5", **_NOT_T5, **_T5, "tie_word_embeddings": True},
    "UMT5ForConditionalGeneration": {"model_type": "umt5", **_NOT_T5, **_T5, "tie_word_embeddings": True},
}
_INNER: dict[str, dict[str, Any]] = {
    "cohere2": {"sliding_window": 16},
    "ernie4_5": {},
    "exaone4": {"sliding_window": 16, "head_dim": 16},
    "gemma": {"head_dim": 16, "tie_word_embeddings": True},
    "gemma3n_text": {
        "head_dim": 16,
        "sliding_window": 16,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 128,
        "num_kv_shared_layers": 2,
        "laurel_rank": 8,
        "tie_word_embeddings": True,
    },
    "glm4v_text": {"head_dim": 16},
    "glm4v_moe_text": {**_ROUTED, "head_dim": 16},
    "deepseek_v2": {**_LATENT, **_ROUTED, "topk_method": "greedy"},
    "deepseek_v3": {**_LATENT, **_ROUTED, "topk_method": "noaux_tc"},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 2, "block_auto_adjust_ff_dim": False},
    "llama": {},
    "minimax_m3": _MINIMAX_M3,
    "mistral": {"head_dim": 16},
    "nemotron_h": {
        "hybrid_override_pattern": "M-M*M-M*",
        "mamba_num_heads": 4,
        "mamba_head_dim": 32,
        "ssm_state_size": 16,
        "n_groups": 2,
        "head_dim": 16,
    },
    "qwen2": {},
    "qwen2_5_vl_text": {},
    "qwen2_5_omni_text": {},
    "qwen3": {"head_dim": 16},
    "qwen3_5_text": _DELTA,
    "qwen4_exp_text": _QWEN4,
    "qwen3_omni_moe_text": {**_EXPERTS, "head_dim": 16},
    "step3_text": {key: value for key, value in _STEP3.items() if value is not None},
    "step3p7_text": _STEP,
}
_WRAPPED = {
    "AyaVisionForConditionalGeneration": "text_config:cohere2",
    "Cohere2VisionForConditionalGeneration": "text_config:cohere2",
    "DeepseekVLV2ForCausalLM": "language_config:deepseek_v2",
    "DotsOCRForCausalLM": ":qwen2",
    "Exaone4_5_ForConditionalGeneration": "text_config:exaone4",
    "Gemma3nForConditionalGeneration": "text_config:gemma3n_text",
    "Glm4vForConditionalGeneration": "text_config:glm4v_text",
    "Glm4vMoeForConditionalGeneration": "text_config:glm4v_moe_text",
    "H2OVLChatModel": "llm_config:llama",
    "Idefics3ForConditionalGeneration": "text_config:llama",
    "InternS1ForConditionalGeneration": "text_config:qwen3",
    "InternVLChatModel": "llm_config:qwen2",
    "InternVLForConditionalGeneration": "text_config:qwen2",
    "KimiVLForConditionalGeneration": "text_config:deepseek_v3",
    "Lfm2VlForConditionalGeneration": "text_config:lfm2",
    "Llama_Nemotron_Nano_VL": "llm_config:llama",
    "LlavaLlamaForCausalLM": ":llama",
    "LlavaNextForConditionalGeneration": "text_config:mistral",
    "LlavaNextVideoForConditionalGeneration": "text_config:llama",
    "LlavaOnevisionForConditionalGeneration": "text_config:qwen2",
    "MiniCPMV4_6ForConditionalGeneration": "text_config:qwen3_5_text",
    "MiniMaxM3SparseForConditionalGeneration": "text_config:minimax_m3",
    "NVLM_D": "llm_config:qwen2",
    "NemotronH_Nano_VL_V2": "llm_config:nemotron_h",
    "PaddleOCRVLForConditionalGeneration": "text_config:ernie4_5",
    "PaliGemmaForConditionalGeneration": "text_config:gemma",
    "PixtralForConditionalGeneration": "text_config:mistral",
    "Qwen2AudioForConditionalGeneration": "text_config:qwen2",
    "Qwen2_5OmniForConditionalGeneration": "thinker_config.text_config:qwen2_5_omni_text",
    "Qwen2_5OmniModel": "thinker_config.text_config:qwen2_5_omni_text",
    "Qwen2_5_VLForConditionalGeneration": "text_config:qwen2_5_vl_text",
    "Qwen3OmniMoeForConditionalGeneration": "thinker_config.text_config:qwen3_omni_moe_text",
    "SkyworkR1VChatModel": "llm_config:qwen2",
    "Qwen4ExpForConditionalGeneration": "text_config:qwen4_exp_text",
    "SmolVLMForConditionalGeneration": "text_config:llama",
    "Step3VLForConditionalGeneration": "text_config:step3_text",
    "Step3p7ForConditionalGeneration": "text_config:step3p7_text",
    "UltravoxModel": "text_config:llama",
    "VoxtralForConditionalGeneration": "text_config:llama",
}
"""Where the language model stands in a wrapper's config, and its type."""

_NAMED_INNER = {"minimax_m3": "MiniMaxM3ForCausalLM", "step3p7_text": "Step3p7FlashForCausalLM"}
"""Types that both sides know by the architecture that the text config names."""


def _wrapped(architecture: str, place: str) -> dict[str, Any]:
    path, model_type = place.split(":")
    text = {**_SMALL, "model_type": model_type, **_INNER[model_type]}
    if model_type in _NAMED_INNER:
        text["architectures"] = [_NAMED_INNER[model_type]]
    if not path:
        return {**text, "architectures": [architecture]}
    for section in reversed(path.split(".")):
        text = {section: text}
    return {**text, "architectures": [architecture], "torch_dtype": "bfloat16"}


def small_configs() -> dict[str, dict[str, Any]]:
    """By architecture. A key that is None is left out."""
    plain = {**_WINDOWS, **_LATENTS, **_STATES, **_OTHERS, **_ENCODERS}
    configs = {name: {**_SMALL, "architectures": [name], **own} for name, own in plain.items()}
    configs |= {name: _wrapped(name, place) for name, place in _WRAPPED.items()}
    return {
        name: {key: value for key, value in config.items() if value is not None} for name, config in configs.items()
    }
