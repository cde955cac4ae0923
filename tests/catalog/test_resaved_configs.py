"""Configs as transformers 5 writes them: shipped ones loaded and saved again, and its classes' own keys."""

from __future__ import annotations

from typing import Any

import pytest

from independent_count import count_independently
from kvplan.catalog.models import profiles
from kvplan.catalog.reader import read_config
from kvplan.catalog.spec import CompressedAttention, SoftmaxAttention, StateMixer
from resaved_configs import changes, saved_by_transformers

_SHIPPED = {profile["name"]: profile["config"] for profile in profiles()}
_NOT_LOADED = (
    *("chatglm3-6b", "deepseek-moe-16b", "exaone-4.0-32b", "internlm2.5-7b", "kimi-k2", "kimi-k3"),
    *("llama-3.3-nemotron-super-49b", "mimo-7b-base", "minimax-text-01", "phi-3-vision-128k", "qwen-7b"),
)
"""Profiles whose class comes with the checkpoint, or whose published keys transformers 5.24 refuses."""
_SAMPLE = ("deepseek-v4-flash", "mimo-v2-flash", "mistral-small-3.1-24b", "nemotron-3-nano-30b", "qwen3-vl-30b-a3b")


@pytest.mark.parametrize("name", _SAMPLE)
def test_a_config_that_is_saved_again_is_sized_as_before(name):
    assert changes(_SHIPPED[name], saved_by_transformers(_SHIPPED[name])) == ""


def _format(config: dict[str, Any]) -> str | None:
    section: dict[str, Any] = config.get("quantization_config") or {}
    return section.get("quant_method")


@pytest.mark.slow
def test_one_config_of_each_architecture_and_format_is_sized_as_before():
    """``tools/resaved_configs.py`` tries all of them."""
    kinds = {(config["architectures"][0], str(_format(config))): name for name, config in _SHIPPED.items()}
    rest = sorted(set(kinds.values()) - set(_SAMPLE))
    written = {name: saved_by_transformers(_SHIPPED[name]) for name in rest}
    assert tuple(name for name in rest if written[name] is None) == _NOT_LOADED
    found = {name: changes(_SHIPPED[name], config) for name, config in written.items() if config is not None}
    assert {name: change for name, change in found.items() if change} == {}


_SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}
_EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
_KIMI = {
    **{key: value for key, value in _SMALL.items() if key != "head_dim"},
    "model_type": "kimi_linear",
    "linear_num_heads": 4,
    "linear_head_dim": 16,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "moe_intermediate_size": 32,
    "num_key_value_heads": 4,
    "pad_token_id": 0,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
}
_INKLING = {
    **_SMALL,
    "model_type": "inkling_text",
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 16,
    "layer_types": ["hybrid_sliding", "hybrid_sliding", "hybrid", "hybrid_sliding"],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
}
_STEP = {
    "model_type": "step3p7",
    "architectures": ["Step3p7ForConditionalGeneration"],
    "text_config": {
        **_SMALL,
        **_EXPERTS,
        "model_type": "step3p5",
        "n_routed_experts": 4,
        "share_expert_dim": 32,
        "sliding_window": 16,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "num_sliding_attention_heads": 6,
    },
}
_MINIMAX = {
    "model_type": "minimax_m3_vl",
    "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
    "text_config": {
        **_SMALL,
        "model_type": "minimax_m3_vl_text",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "dense_intermediate_size": 96,
        "shared_intermediate_size": 32,
        "intermediate_size": 32,
        "index_n_heads": 2,
        "index_head_dim": 16,
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse", "full_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    },
}
_DEEPSEEK_V4 = {
    **_SMALL,
    **_EXPERTS,
    "model_type": "deepseek_v4",
    "num_key_value_heads": 1,
    "n_routed_experts": 4,
    "q_lora_rank": 32,
    "o_lora_rank": 16,
    "o_groups": 2,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 8,
    "layer_types": [
        *("sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"),
        "compressed_sparse_attention",
    ],
    "mlp_layer_types": ["hash_moe", "moe", "moe", "moe"],
}
_NEMOTRON = {
    **{key: value for key, value in _SMALL.items() if key != "num_hidden_layers"},
    "model_type": "nemotron_h",
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "n_groups": 2,
    "n_routed_experts": 4,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"],
}


@pytest.mark.parametrize("config", [_KIMI, _INKLING, _STEP, _MINIMAX, _DEEPSEEK_V4, _NEMOTRON])
def test_the_keys_of_transformers_classes_are_read(config):
    written = saved_by_transformers(config)
    assert written is not None
    counted = count_independently(config)
    assert read_config(written, model_id="written").num_parameters == counted.num_parameters + counted.num_corrections


def _written(config: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(layer.mixer for layer in read_config(saved_by_transformers(config), model_id="written").layers)


def test_layer_types_say_which_layers_keep_what():
    assert [isinstance(mixer, StateMixer) for mixer in _written(_KIMI)] == [True, True, False, True]
    assert [mixer.window_tokens for mixer in _written(_INKLING)] == [512, 512, None, 512]
    assert [mixer.num_heads for mixer in _written(_STEP) if isinstance(mixer, SoftmaxAttention)] == [4, 6, 6, 4]
    assert [mixer.indexer is not None for mixer in _written(_MINIMAX)] == [False, True, True, False]
    compressed = [mixer for mixer in _written(_DEEPSEEK_V4) if isinstance(mixer, CompressedAttention)]
    assert [mixer.ratio for mixer in compressed] == [None, 4, 128, 4]


def test_the_outer_config_says_whether_embeddings_are_tied():
    """vLLM's ``with_hf_config``: transformers writes the text class's own default into the section."""
    written = saved_by_transformers(_SHIPPED["qwen3-vl-30b-a3b"])
    assert written is not None
    assert (written["tie_word_embeddings"], written["text_config"]["tie_word_embeddings"]) == (False, True)
    assert not read_config(written, model_id="written").tie_word_embeddings
    tied = {
        **written,
        "tie_word_embeddings": True,
        "text_config": {**written["text_config"], "tie_word_embeddings": False},
    }
    assert read_config(tied, model_id="tied").tie_word_embeddings


def test_a_head_of_mistral_3_stays_its_own():
    """Its outer class ties by default what is published untied; the smallest Ministral says inside that it is tied."""
    written = saved_by_transformers(_SHIPPED["mistral-small-3.1-24b"])
    assert written is not None and written["tie_word_embeddings"]
    assert not read_config(written, model_id="written").tie_word_embeddings
    inside = {**written["text_config"], "tie_word_embeddings": True}
    assert read_config({**written, "text_config": inside}, model_id="tied").tie_word_embeddings
