"""Models that see or hear: the language model inside, versions, and towers as vLLM 0.33's classes have them.

Small configs of each stand in ``tests/data/counted_configs.json``.
"""

from __future__ import annotations

from typing import Any

import pytest
from counted_configs import SMALL, counted_config
from kept_elements import kept as kept_by_layer

from kvplan.catalog.reader import read_config
from kvplan.errors import KvplanError

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_SOFTMAX = [("softmax", 64, None)] * 4
_ENDS = 128 * 64
"""Parameters of an embedding, or of a head."""

_AS_NAMED = {
    "KananaVForConditionalGeneration": ("text_config:llama", "LlamaForCausalLM"),
    "MiDashengLMModel": ("text_config:qwen2_5_omni_text", "Qwen2ForCausalLM"),
    "MiniCPMO": (":minicpmo", "Qwen2ForCausalLM"),
    "MoonshotKimiaForCausalLM": (":kimi_audio", "Qwen2ForCausalLM"),
    "Ovis2_5": ("llm_config:qwen3", "Qwen3ForCausalLM"),
    "Ovis2_6ForCausalLM": ("llm_config:qwen3", "Qwen3ForCausalLM"),
}
"""Wrappers whose class cannot be made without files or libraries, and the language model that its code makes."""


def _named(architecture: str) -> dict[str, Any]:
    path, model_type = _AS_NAMED[architecture][0].split(":")
    text = {**SMALL, "model_type": model_type}
    return {**({path: text} if path else text), "torch_dtype": "bfloat16", "architectures": [architecture]}


@pytest.mark.parametrize("architecture", _AS_NAMED)
def test_wrappers_hold_what_their_code_names(architecture):
    plain = read_config({**SMALL, "architectures": [_AS_NAMED[architecture][1]]}, model_id="plain")
    spec = read_config(_named(architecture), model_id=architecture)
    assert (spec.layers, spec.tensors) == (plain.layers, plain.tensors)


def test_ling_3_that_sees_holds_ling_3():
    """566,464 parameters below the language model of vLLM's class, as its text model alone has."""
    text = {
        **SMALL,
        "model_type": "bailing_hybrid",
        "num_hidden_layers": 5,
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 64,
        "v_head_dim": 16,
        **_EXPERTS,
        "num_shared_experts": 1,
        "moe_shared_expert_intermediate_size": 40,
        "first_k_dense_replace": 1,
        "layer_group_size": 3,
        "no_kda_lora": True,
        "gated_attention_proj_granularity_type": "head_wise",
    }
    config = {"architectures": ["BailingMoeV3VLForConditionalGeneration"], "text_config": text}
    assert read_config({**config, "torch_dtype": "bfloat16"}, model_id="ling vl").num_parameters == 566_464


@pytest.mark.parametrize(
    ("own", "parameters"),
    [
        ({"additional_vocab_size": 12}, 144_064 - 52 * 64),
        ({"additional_vocab_size": 0, "qk_norm_type": "olmo", "norm_after": True}, 140_224),
        ({"additional_vocab_size": 12, "qkv_bias": True, "use_qk_norm": False}, 144_448 - 52 * 64),
    ],
)
def test_molmo_2_as_vllm_builds_it(own, parameters):
    """vLLM pads the 140 rows of the embedding to 192."""
    config = {"architectures": ["Molmo2ForConditionalGeneration"], "text_config": {**SMALL, **own}, "vit_config": {}}
    spec = read_config({**config, "torch_dtype": "bfloat16"}, model_id="molmo")
    assert spec.num_parameters == parameters
    assert kept_by_layer(spec) == _SOFTMAX
    assert [(extra.kind, extra.num_parameters) for extra in spec.extras] == [("vision", None)]


@pytest.mark.parametrize(
    ("architecture", "version", "parameters"),
    [("MiniCPMV", None, 345_216), ("MiniCPMV", "2.6", 345_984), ("MiniCPMV", 4.0, 345_216), ("MiniCPMO", 2.6, 345_984)],
)
def test_versions_of_minicpm_hold_different_language_models(architecture, version, parameters):
    config = counted_config("MiniCPMV", architectures=[architecture], version=version)
    assert read_config(config, model_id="minicpm").num_parameters == parameters


@pytest.mark.parametrize("own", [{"version": 2.0}, {"version": None, "query_num": 64}])
def test_minicpm_v_2_is_refused(own):
    with pytest.raises(KvplanError, match="version"):
        read_config(counted_config("MiniCPMV", **own), model_id="minicpm")


def test_a_class_that_ties_does_so_only_where_the_config_is_silent():
    config = counted_config("LightOnOCRForConditionalGeneration", tie_word_embeddings=False)
    assert read_config(config, model_id="lighton").num_parameters == 131_776 + _ENDS


_VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": 14,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
}
_PIXTRAL = {
    "model_type": "pixtral",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "patch_size": 14,
    "image_size": 56,
}


@pytest.mark.parametrize(
    ("architecture", "outer", "counted"),
    [
        (
            "Cosmos3ForConditionalGeneration",
            {"vision_config": {**_VISION, "model_type": "qwen3_vl", "deepstack_visual_indexes": [0]}},
            103_040,
        ),
        (
            "InternS2PreviewForConditionalGeneration",
            {"vision_config": {**_VISION, "model_type": "qwen3_5_moe", "deepstack_visual_indexes": []}},
            78_016,
        ),
        (
            "LightOnOCRForConditionalGeneration",
            {"vision_config": _PIXTRAL, "spatial_merge_size": 2},
            36_384 + 10_272,
        ),
        (
            "DeepseekOCRForCausalLM",
            {"vision_config": {}, "projector_config": {"projector_type": "linear", "input_dim": 2048}},
            95_569_152 + 303_177_728 + 131_136 + 2 * 64,
        ),
        (
            "DeepseekOCR2ForCausalLM",
            {"vision_config": {}, "projector_config": {"projector_type": "linear", "input_dim": 896}},
            94_979_328 + 358_256_512 + 57_408 + 64,
        ),
    ],
)
def test_towers_as_vllm_builds_them(architecture, outer, counted):
    spec = read_config(counted_config(architecture, **outer), model_id=architecture)
    assert sum(extra.num_parameters or 0 for extra in spec.extras) == counted


@pytest.mark.parametrize(
    ("architecture", "outer", "names"),
    [
        ("MiniCPMO", {"vision_config": {"model_type": "siglip_vision_model"}, "audio_config": {}}, ["vision", "audio"]),
        ("Ovis", {"visual_tokenizer_config": {}}, ["vision"]),
        ("Ovis2_5", {"vit_config": {}}, ["vision"]),
        ("GraniteSpeechForConditionalGeneration", {"encoder_config": {}}, ["audio"]),
        ("NemotronH_Nano_Omni_Reasoning_V3", {"vision_config": {}, "sound_config": {}}, ["vision", "audio"]),
    ],
)
def test_towers_that_are_not_counted_are_named(architecture, outer, names):
    of = {"MiniCPMO": "MiniCPMV", "Ovis2_5": "Ovis"}.get(architecture, architecture)
    spec = read_config(counted_config(of, **outer, architectures=[architecture]), model_id=architecture)
    assert [(extra.kind, extra.num_parameters) for extra in spec.extras] == [(name, None) for name in names]


def test_glm_ocr_has_its_class_defaults():
    """vLLM's class of transformers' defaults: 373,359,616 parameters of the language model, heads of 64."""
    config = {"architectures": ["GlmOcrForConditionalGeneration"], "text_config": {"model_type": "glm_ocr_text"}}
    spec = read_config({**config, "torch_dtype": "bfloat16"}, model_id="glm ocr")
    assert spec.num_parameters == 373_359_616
    assert {layer.mixer.cache_elements_per_token for layer in spec.layers} == {2 * 8 * 64}


def test_deepseek_ocr_has_the_parameters_of_its_checkpoint():
    """3.34 B, its encoders among them."""
    text = {
        "architectures": ["DeepseekV2ForCausalLM"],
        "hidden_size": 1280,
        "intermediate_size": 6848,
        "num_hidden_layers": 12,
        "num_attention_heads": 10,
        "num_key_value_heads": 10,
        "vocab_size": 129280,
        "max_position_embeddings": 8192,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 896,
        "first_k_dense_replace": 1,
        "kv_lora_rank": None,
        "q_lora_rank": None,
        "qk_nope_head_dim": 0,
        "qk_rope_head_dim": 0,
        "v_head_dim": 0,
    }
    config = {
        "architectures": ["DeepseekOCRForCausalLM"],
        "model_type": "deepseek_vl_v2",
        "torch_dtype": "bfloat16",
        "language_config": text,
        "projector_config": {"projector_type": "linear", "input_dim": 2048},
    }
    spec = read_config(config, model_id="deepseek ocr")
    whole = spec.num_parameters + sum(extra.num_parameters or 0 for extra in spec.extras)
    assert whole / 1e9 == pytest.approx(3.34, abs=0.005)
