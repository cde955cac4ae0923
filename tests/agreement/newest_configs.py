"""Small configs of the architectures that came last, for ``small_configs``. No published model has these shapes."""

from __future__ import annotations

from typing import Any

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_KINDS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"] * 2

NEWEST: dict[str, dict[str, Any]] = {
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
    "Kolibri1ForCausalLM": {
        "model_type": "kolibri1",
        **_EXPERTS,
        "intermediate_size": None,
        "head_dim": 16,
        "sliding_window": 17,
        "shared_expert_intermediate_size": 40,
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
