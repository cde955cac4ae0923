"""Models that read documents, of the sizes that their classes in transformers have by default.

The counts are those of ``UnlimitedOcrForConditionalGeneration`` and ``HunYuanVLForConditionalGeneration`` on the meta
device, without what the towers have.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.catalog.reader import read_config
from kvplan.catalog.spec import ModelSpec, SoftmaxAttention

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


def _read(architecture: str, **parts: Any) -> ModelSpec:
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
    spec = _read(architecture, tie_word_embeddings=False, projector_config=projector, **{section: text})
    assert spec.num_parameters == 2_934_734_080
    assert all(isinstance(layer.mixer, SoftmaxAttention) and layer.mixer.window_kind == "full" for layer in spec.layers)


def test_the_towers_of_unlimited_ocr_are_those_of_deepseek_ocr() -> None:
    projector = {"projector_type": "linear", "input_dim": 2048}
    both = [
        _read(name, projector_config=projector, language_config=_AS_PUBLISHED)
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
    spec = _read("HunYuanVLForConditionalGeneration", model_type="hunyuan_vl", text_config=text, vision_config=vision)
    assert spec.num_parameters == 1_546_142_208
    assert [extra.num_parameters for extra in spec.extras] == [471_369_200]
