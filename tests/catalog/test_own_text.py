"""Models that see or read documents, whose text is of no other family."""

from __future__ import annotations

from typing import Any

import pytest
from counted_configs import SMALL, counted_config

from kvplan.catalog.reader import read_config
from kvplan.catalog.spec import ModelSpec, SoftmaxAttention
from kvplan.errors import KvplanError
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.steps.work import model_work
from kvplan.estimate.weights import size_weights


def _read(architecture: str, own: dict[str, Any]) -> ModelSpec:
    return read_config({"torch_dtype": "bfloat16", **own, "architectures": [architecture]}, model_id="small")


def test_glm_4v_is_chatglm_with_a_tower() -> None:
    sizes = {"num_layers": 4, "padded_vocab_size": 128, "ffn_hidden_size": 96, "seq_length": 256}
    chatglm = {**SMALL, **sizes, "multi_query_attention": True, "multi_query_group_num": 2, "add_qkv_bias": True}
    seeing = _read("GLM4VForCausalLM", {**chatglm, "vision_config": {"hidden_size": 32}})
    assert seeing.num_parameters == _read("ChatGLMModel", chatglm).num_parameters
    assert [extra.kind for extra in seeing.extras] == ["vision"]


_ERNIE_28B = {
    **counted_config("ernie vl"),
    "model_type": "ernie4_5_moe_vl",
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_hidden_layers": 28,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "head_dim": None,
    "vocab_size": 103424,
    "max_position_embeddings": 131072,
    "moe_num_experts": [64, 64],
    "moe_intermediate_size": [1536, 512],
    "moe_k": 6,
    "moe_layer_end_index": [29, 28],
    "tie_word_embeddings": True,
}


def test_ernie_vl_28b_has_the_parameters_of_its_class() -> None:
    """And 3 B of them active for text, without the embedding."""
    spec = _read("Ernie4_5_VLMoeForConditionalGeneration", _ERNIE_28B)
    assert spec.num_parameters == 28_624_635_776
    embedding = spec.vocab_size * spec.hidden_size
    assert (spec.num_active_parameters - embedding) / 1e9 == pytest.approx(3, abs=0.1)


def test_text_reads_no_experts_of_images() -> None:
    """All experts of text are read by many tokens, and what stands around them; those of images never are."""
    spec = _read("Ernie4_5_VLMoeForConditionalGeneration", _ERNIE_28B)
    weight_bytes = size_weights(spec, "bfloat16").total_bytes
    work = model_work(spec, weight_bytes, "bfloat16", ParallelLayout())
    images = 27 * 64 * 3 * 512 * 2560 * 2
    assert work.dense_bytes + work.expert_bytes == pytest.approx(weight_bytes - images, rel=1e-6)
    assert work.expert_bytes == pytest.approx(3 * images, rel=1e-3)


def test_muse_has_the_parameters_of_its_classes() -> None:
    """Muse Glimmer 30B (with its tower) and Muse Spark 816B (without embedding and head)."""
    glimmer = {
        "model_type": "muse_glimmer_text",
        "hidden_size": 6656,
        "intermediate_size": 19968,
        "num_hidden_layers": 52,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "vocab_size": 202048,
    }
    spec = _read("MuseGlimmerForConditionalGeneration", {"text_config": glimmer})
    assert spec.num_parameters == 27_854_780_928
    spark = {
        "hidden_size": 8192,
        "intermediate_size": 16384,
        "num_hidden_layers": 62,
        "num_attention_heads": 128,
        "num_key_value_heads": 16,
        "head_dim": 64,
        "vocab_size": 202048,
        "max_position_embeddings": 1048576,
        "moe_intermediate_size": 4096,
        "moe_hidden_size": 4096,
        "num_local_experts": 256,
        "num_experts_per_tok": 8,
    }
    spec = _read("MuseSparkForConditionalGeneration", {"text_config": spark})
    assert spec.num_parameters == 819_990_536_192
    outside = 2 * spec.vocab_size * spec.hidden_size
    assert (spec.num_parameters - outside) / 1e9 == pytest.approx(816, abs=1)
    assert (spec.num_active_parameters - outside) / 1e9 == pytest.approx(42, abs=1)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("aria", "mlp_bias", True),
        ("ernie vl", "moe_num_experts", 4),
        ("ernie vl", "moe_num_experts", [4, 8]),
        ("ernie vl", "moe_layer_start_index", [1, 2]),
        ("ernie vl", "tie_word_embeddings", None),
        ("intern-s1-pro", "rope_scaling", {"rope_type": "default"}),
        ("molmo", "weight_tying", True),
        ("molmo", "layer_norm_type", "low_precision"),
        ("muse spark", "num_shared_experts", 1),
    ],
)
def test_what_is_not_known_is_refused(name: str, key: str, value: object) -> None:
    config = counted_config(name)
    changed = {**config.get("text_config", config), key: value}
    with pytest.raises(KvplanError, match=key):
        read_config({**config, "text_config": changed} if "text_config" in config else changed, model_id="small")


_OCR = {
    "hidden_size": 1280,
    "intermediate_size": 6848,
    "num_hidden_layers": 12,
    "num_attention_heads": 10,
    "num_key_value_heads": 10,
    "vocab_size": 129280,
    "max_position_embeddings": 32768,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 896,
}
_AS_TRANSFORMERS_WRITES = {
    **_OCR,
    "model_type": "unlimited_ocr_text",
    "head_dim": 128,
    "mlp_layer_types": ["dense"] + ["sparse"] * 11,
    "layer_types": ["reference_sliding_attention"] * 12,
    "sliding_window": 128,
}
_AS_PUBLISHED = {
    **_OCR,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "first_k_dense_replace": 1,
    "qk_nope_head_dim": 0,
    "qk_rope_head_dim": 0,
    "v_head_dim": 0,
}


def _read_document(architecture: str, **parts: Any) -> ModelSpec:
    return read_config({"architectures": [architecture], "dtype": "bfloat16", **parts}, model_id="test")


@pytest.mark.parametrize(
    ("architecture", "section", "text"),
    [
        ("UnlimitedOCRForCausalLM", "language_config", _AS_PUBLISHED),
        ("UnlimitedOcrForConditionalGeneration", "text_config", _AS_TRANSFORMERS_WRITES),
    ],
)
def test_unlimited_ocr_keeps_all_tokens(architecture: str, section: str, text: dict[str, Any]) -> None:
    """Its window is a mask of generated tokens: vLLM keeps full attention's blocks (models/unlimited_ocr.py)."""
    projector = {"projector_type": "linear", "input_dim": 2048}
    spec = _read_document(architecture, tie_word_embeddings=False, projector_config=projector, **{section: text})
    assert spec.num_parameters == 2_934_734_080
    assert all(isinstance(layer.mixer, SoftmaxAttention) and layer.mixer.window_kind == "full" for layer in spec.layers)


def test_the_towers_of_unlimited_ocr_are_those_of_deepseek_ocr() -> None:
    projector = {"projector_type": "linear", "input_dim": 2048}
    both = [
        _read_document(name, projector_config=projector, language_config=_AS_PUBLISHED)
        for name in ("UnlimitedOCRForCausalLM", "DeepseekOCRForCausalLM")
    ]
    assert both[0].extras == both[1].extras and all(each.num_parameters for each in both[0].extras)


def test_hunyuan_vl_with_its_tower() -> None:
    text = {
        "model_type": "hunyuan_vl_text",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 2,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 290943,
        "max_position_embeddings": 2048,
    }
    vision = {"model_type": "hunyuan_vl_vision", "hidden_size": 1152, "out_hidden_size": 4096}
    spec = _read_document(
        "HunYuanVLForConditionalGeneration", model_type="hunyuan_vl", text_config=text, vision_config=vision
    )
    assert spec.num_parameters == 1_546_142_208
    assert [extra.num_parameters for extra in spec.extras] == [471_369_200]
