"""Architectures that transformers lacks: what their makers state, and what is refused.

Small configs of each stand in ``tests/data/counted_configs.json``, with what vLLM's classes make of them.
"""

from __future__ import annotations

from typing import Any

import pytest
from counted_configs import SMALL, counted_config
from kept_elements import kept as kept_by_layer

from kvplan.catalog.reader import read_config
from kvplan.catalog.spec import LatentAttention, ModelSpec


def test_shared_experts_of_param_2_without_a_size_of_their_own():
    config = counted_config("param 2", moe_shared_expert_intermediate_size=None)
    assert read_config(config, model_id="param").num_parameters == 196_044


def test_solar_without_a_window_has_its_class_default():
    spec = read_config({**SMALL, "architectures": ["SolarForCausalLM"]}, model_id="solar")
    assert [tokens for _, _, tokens in kept_by_layer(spec)] == [2047] * 4
    assert any("2,047" in sentence for sentence in spec.assumptions)


def test_biases_of_ring_that_nobody_knows_are_refused():
    with pytest.raises(Exception, match="use_bias"):
        read_config(counted_config("ring 2.5", use_bias=True), model_id="ring")


def test_step_3_has_the_parameters_its_makers_state():
    """The sizes of its published config, which vLLM's class has as defaults: 316 B in language, 38 B of them
    active, which leaves the embedding out.
    """
    config = {
        "architectures": ["Step3VLForConditionalGeneration"],
        "model_type": "step3_vl",
        "vision_config": {},
        "text_config": {
            "model_type": "step3_text",
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "num_attention_heads": 64,
            "num_hidden_layers": 61,
            "vocab_size": 128815,
            "moe_intermediate_size": 5120,
            "moe_num_experts": 48,
            "moe_top_k": 3,
            "max_position_embedding": 65536,
            "share_expert_dim": 5120,
            "share_q_dim": 2048,
            "head_dim": 256,
            "moe_layers_enum": ",".join(str(index) for index in range(4, 60)),
        },
    }
    spec = read_config(config, model_id="step3")
    assert spec.num_parameters / 1e9 == pytest.approx(316, abs=0.5)
    embedding = spec.vocab_size * spec.hidden_size
    assert (spec.num_active_parameters - embedding) / 1e9 == pytest.approx(38, abs=0.5)
    assert spec.max_position_embeddings == 65536
    assert {layer.mixer.cache_elements_per_token for layer in spec.layers} == {512}


_LING_3_FLASH = {
    "architectures": ["BailingMoeV3ForCausalLM"],
    "model_type": "bailing_hybrid",
    "hidden_size": 2560,
    "intermediate_size": 6144,
    "num_hidden_layers": 42,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "vocab_size": 157184,
    "max_position_embeddings": 262144,
    "layer_group_size": 6,
    "no_kda_lora": True,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "gated_attention_proj_granularity_type": "head_wise",
    "num_experts": 512,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "moe_intermediate_size": 768,
    "moe_shared_expert_intermediate_size": 768,
    "first_k_dense_replace": 2,
}


def test_ling_3_flash_has_the_parameters_its_makers_state():
    """124 B, 5.1 B of them active without the embedding; the hub's 127 B are with a drafter's layer."""
    spec = read_config({**_LING_3_FLASH, "num_nextn_predict_layers": 1}, model_id="ling")
    active = spec.num_active_parameters - spec.vocab_size * spec.hidden_size
    assert spec.num_parameters / 1e9 == pytest.approx(124, abs=0.5)
    assert active / 1e9 == pytest.approx(5.1, abs=0.05)
    (drafter,) = spec.extras
    assert drafter.num_parameters is not None
    assert (spec.num_parameters + drafter.num_parameters) / 1e9 == pytest.approx(127, abs=0.6)


def test_kimi_states_of_low_rank_are_not_read_as_ling_3():
    with pytest.raises(Exception, match="no_kda_lora"):
        read_config({**_LING_3_FLASH, "no_kda_lora": False}, model_id="ling")


def test_sarvam_105b_has_the_parameters_of_its_name():
    config = {
        "architectures": ["SarvamMLAForCausalLM"],
        "model_type": "sarvam_mla",
        "hidden_size": 4096,
        "intermediate_size": 16384,
        "num_hidden_layers": 32,
        "num_attention_heads": 64,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 2048,
        "vocab_size": 262144,
        "max_position_embeddings": 131072,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    spec = read_config(config, model_id="sarvam")
    assert spec.num_parameters / 1e9 == pytest.approx(105, abs=1.5)


def _indexed(config: dict[str, Any]) -> list[bool]:
    """Of each layer: whether it keeps index keys."""
    spec = read_config(config, model_id="indexed")
    return [isinstance(layer.mixer, LatentAttention) and layer.mixer.indexer is not None for layer in spec.layers]


def test_layers_of_hunyuan_4_that_keep_index_keys():
    """As vLLM's class has them: a cache of 132 B a token in each."""
    assert _indexed(counted_config("hunyuan 4")) == [True, True, False, False, False, True]
    assert _indexed(counted_config("hunyuan 4, mixed")) == [False, True, False, False, False, True]
    assert not any(_indexed(counted_config("hunyuan 4, all tokens")))
    chosen = [
        layer.mixer.chosen_tokens for layer in read_config(counted_config("hunyuan 4, mixed"), model_id="hy").layers
    ]
    assert chosen == [None, 64] * 3


def test_drafters_of_hunyuan_4_have_one_stream():
    """Parameters of vLLM's class without embedding and head, which are the model's."""
    (drafter,) = read_config(counted_config("hunyuan 4", num_nextn_predict_layers=1), model_id="hy").extras
    assert drafter.num_parameters == 174_560


def test_hunyuan_4_preview_has_the_parameters_of_its_class():
    """transformers' class of its config's defaults, which are the preview's, with the correction of its routers."""
    config = {
        **counted_config("hunyuan 4"),
        "architectures": ["HYV4ForCausalLM"],
        "model_type": "hy_v4",
        "vocab_size": 120832,
        "hidden_size": 2816,
        "intermediate_size": 6912,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 34,
        "num_attention_heads": 32,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "index_n_heads": 16,
        "index_topk": 2048,
        "layer_types": ["indexed_attention"] * 34,
        "max_position_embeddings": 262144,
    }
    spec = read_config(config, model_id="hy")
    assert spec.num_parameters == 58_278_201_581
    assert sum(_indexed(config)) == 10


@pytest.mark.parametrize(
    "own",
    [
        {"layer_types": None},
        {"layer_types": ["linear_attention"] * 6},
        {"indexer_types": ["full"] * 5},
        {"gating_type": "none"},
        {"attention_bias": True},
    ],
)
def test_what_is_not_known_of_hunyuan_4_is_refused(own):
    (key,) = own
    with pytest.raises(Exception, match=key):
        read_config(counted_config("hunyuan 4", **own), model_id="hy")


_GLM_FLASH_TEXT = {
    "model_type": "glm5_next_text",
    "vocab_size": 154880,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 45,
    "num_attention_heads": 64,
    "n_shared_experts": 1,
    "n_routed_experts": 288,
    "num_experts_per_tok": 8,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 0,
    "qk_nope_head_dim": 256,
    "v_head_dim": 256,
    "max_position_embeddings": 1048576,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "index_kpool": 16,
    "linear_head_dim": 128,
    "linear_num_heads": 64,
}


def _glm_flash(vision: dict[str, Any]) -> ModelSpec:
    config = {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "vision_config": {"model_type": "glm5_next_vision", **vision},
        "text_config": _GLM_FLASH_TEXT,
    }
    return read_config(config, model_id="glm")


def test_glm_flash_has_the_parameters_of_its_class():
    """transformers' class of its config's defaults, with its routers' correction: 313 B, 17.4 B of them active."""
    spec = _glm_flash({})
    assert spec.num_parameters == 313_326_828_862
    assert spec.num_active_parameters / 1e9 == pytest.approx(17.4, abs=0.05)
    assert spec.extras[0].num_parameters == 460_072_448
    latent = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, LatentAttention)]
    assert len(latent) == 11 and {mixer.indexer.pool for mixer in latent if mixer.indexer} == {16}


def test_the_tower_of_glm_flash():
    vision = {"depth": 3, "hidden_size": 48, "num_heads": 4, "patch_size": 4, "out_hidden_size": 40}
    spec = _glm_flash({**vision, "intermediate_size": 72, "projection_intermediate_size": 56})
    assert spec.extras[0].num_parameters == 81_088


@pytest.mark.parametrize(
    ("own", "parameters"), [({}, 170_460), ({"mlp_layer_types": ["sparse"] * 7 + ["dense"]}, 157_912)]
)
def test_drafters_of_glm_flash_have_latent_attention_and_one_stream(own, parameters):
    """Parameters of vLLM's class without embedding and head, which are the model's."""
    config = counted_config("glm 5.3 flash", num_nextn_predict_layers=1, **own)
    (drafter,) = read_config(config, model_id="glm").extras
    assert drafter.num_parameters == parameters


@pytest.mark.parametrize(
    "own",
    [
        {"qk_rope_head_dim": 64},
        {"q_lora_rank": None},
        {"index_head_dim": 64},
        {"index_kpool": 1},
        {"index_topk": 40},
        {"index_kpool_always_select_tail": False},
        {"indexer_types": ["full"] * 7 + ["shared"]},
        {"index_topk_freq": 2},
        {"layer_types": ["sliding_attention"] * 8},
        {"attention_bias": True},
        {"tie_word_embeddings": True},
    ],
)
def test_what_is_not_known_of_glm_flash_is_refused(own):
    (key,) = own
    with pytest.raises(Exception, match=key):
        read_config(counted_config("glm 5.3 flash", **own), model_id="glm")


def test_what_a_layer_of_another_type_keeps_is_not_guessed():
    """vLLM keeps latents only of types on its list; of others each head's keys and values."""
    for name in ("a.x k1", "pangu ultra"):
        with pytest.raises(Exception, match="model_type"):
            read_config(counted_config(name, model_type="AXK1"), model_id=name)


@pytest.mark.parametrize("key", ["param_sink_number", "interleaved_sliding_window", "n_routed_experts"])
def test_attentions_of_pangu_that_nobody_knows_are_refused(key):
    with pytest.raises(Exception, match=key):
        read_config({**counted_config("pangu embedded"), key: 4}, model_id="pangu")


def test_chunked_layers_of_rnj_are_refused():
    with pytest.raises(Exception, match="chunked_attention"):
        read_config(counted_config("rnj-1", layer_types=["chunked_attention"] * 4), model_id="rnj")


def test_a_x_k1_has_the_parameters_its_makers_state():
    """519 B, 33 B of them active, from the defaults of transformers' AXK1Config."""
    config = {
        "architectures": ["AXK1ForCausalLM"],
        "model_type": "axk1",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "vocab_size": 163840,
        "n_shared_experts": 1,
        "n_routed_experts": 192,
        "num_experts_per_tok": 8,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "max_position_embeddings": 32768,
    }
    spec = read_config(config, model_id="a.x k1")
    assert spec.num_parameters / 1e9 == pytest.approx(519, abs=0.5)
    assert spec.num_active_parameters / 1e9 == pytest.approx(33, abs=0.5)
    assert {layer.mixer.cache_elements_per_token for layer in spec.layers} == {576}
