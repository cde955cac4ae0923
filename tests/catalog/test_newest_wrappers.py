"""Models that see or hear, which vLLM 0.33 serves: the language model inside, and towers as transformers has them."""

from __future__ import annotations

from typing import Any

import pytest
from counted_configs import SMALL
from kept_elements import kept

from kvplan.catalog.reader import read_config
from kvplan.catalog.spec import ModelSpec


def _read(architecture: str, **config: Any) -> ModelSpec:
    return read_config({"torch_dtype": "bfloat16", **config, "architectures": [architecture]}, model_id=architecture)


def _towers(spec: ModelSpec) -> list[tuple[str, int | None]]:
    return [(extra.name, extra.num_parameters) for extra in spec.extras]


@pytest.mark.parametrize(
    ("architecture", "path", "kind", "inside"),
    [
        ("MossAudioModel", ("language_config",), "qwen3", "Qwen3ForCausalLM"),
        ("Alpamayo2Super", ("vlm_config", "text_config"), "qwen3_vl_text", "Qwen3ForCausalLM"),
        ("VibeVoiceAsrForConditionalGeneration", ("text_config",), "qwen2", "Qwen2ForCausalLM"),
        ("Emu3ForConditionalGeneration", ("text_config",), "emu3_text_model", "LlamaForCausalLM"),
        ("Cosmos3EdgeForConditionalGeneration", ("text_config",), "cosmos3_edge_text", "ArceeForCausalLM"),
    ],
)
def test_a_wrapper_holds_the_language_model_that_vllm_makes(architecture, path, kind, inside):
    text: dict[str, Any] = {**SMALL, "model_type": kind}
    for section in reversed(path):
        text = {section: text}
    spec, plain = _read(architecture, **text), _read(inside, **SMALL)
    assert (spec.layers, spec.tensors) == (plain.layers, plain.tensors)


def test_blip_2_of_opt_has_the_parameters_of_its_class():
    """transformers 5.24's classes: the encoder of all BLIP-2, and its Q-Former in front of OPT 2.7B."""
    text = {
        "model_type": "opt",
        "ffn_dim": 10240,
        "hidden_size": 2560,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "word_embed_proj_dim": 2560,
    }
    spec = _read("Blip2ForConditionalGeneration", text_config=text, vision_config={"model_type": "blip_2_vision_model"})
    assert _towers(spec) == [("vision tower", 985_952_256), ("projector", 24_576 + 105_137_664 + 769 * 2560)]
    assert kept(spec) == [("softmax", 2 * 2560, None)] * 32
    assert (
        spec.num_parameters
        == _read("OPTForCausalLM", **text, vocab_size=50272, max_position_embeddings=2048).num_parameters
    )


def test_vibevoice_hears_with_two_encoders():
    """Parameters of transformers 5.24's class of its config's defaults."""
    text = {**SMALL, "model_type": "qwen2", "hidden_size": 4096, "num_attention_heads": 32, "head_dim": None}
    spec = _read("VibeVoiceAsrForConditionalGeneration", text_config=text)
    assert _towers(spec) == [("audio tower", 343_696_032 + 344_613_600), ("audio projector", 34_365_440)]


def test_emu_3_has_the_defaults_of_its_class_where_its_text_is_silent():
    """8,492,011,520 parameters of transformers 5.24's Emu3ForCausalLM; what makes tokens of images is not counted."""
    spec = _read("Emu3ForConditionalGeneration", text_config={"model_type": "emu3_text_model"}, vq_config={})
    assert spec.num_parameters == 8_492_011_520
    assert kept(spec) == [("softmax", 2 * 8 * 128, None)] * 32
    assert _towers(spec) == [("vision tower", None)]


def test_cosmos_3_edge_has_a_feed_forward_without_a_gate():
    """By transformers 5.24's Cosmos3EdgeTextModel of its defaults, with a head: two matrices of each feed-forward."""
    text = {"model_type": "cosmos3_edge_text"}
    spec = _read("Cosmos3EdgeForConditionalGeneration", text_config=text, vision_config={})
    layer = 2048 * 128 * (16 + 8 + 8 + 16) + 2 * 2048 * 9216 + 2 * 2048
    assert spec.num_parameters == 28 * layer + 2 * 131072 * 2048 + 2048
    assert kept(spec) == [("softmax", 2 * 8 * 128, None)] * 28


@pytest.mark.parametrize("architecture", ["HfMoondream", "Moondream3ForCausalLM"])
def test_moondream_3_of_an_empty_config_is_the_released_model(architecture):
    """9 B, 2 B of them active, as its makers state; by vLLM's class and its config's defaults."""
    spec = _read(architecture, model_type="moondream3", config={})
    attended = 4 * (2048 * 2048 + 2048) + 2 * 2048 + 32 + 2 * 32 * 3 * 2048
    dense = 2 * 2048 * 8192 + 8192 + 2048
    routed = 64 * (3 * 1024 * 2048 + 2048 + 1)
    outside = 2 * 51200 * 2048 + 51200 + 2 * 2048
    assert spec.num_parameters == 24 * attended + 4 * dense + 20 * routed + outside
    towers = sum(count or 0 for _, count in _towers(spec))
    assert (spec.num_parameters + towers) / 1e9 == pytest.approx(9.3, abs=0.05)
    assert spec.num_active_parameters / 1e9 == pytest.approx(1.8, abs=0.05)
    assert kept(spec) == [("softmax", 2 * 32 * 64, None)] * 24
    assert spec.max_position_embeddings == 4096


def test_the_towers_of_moondream_3():
    """An encoder of 3 layers of 48, positions of 4 x 4 patches, and a projector of two of its vectors."""
    vision = {"enc_dim": 48, "enc_n_layers": 3, "enc_ff_dim": 72, "proj_inner_dim": 80, "crop_size": 56}
    spec = _read("HfMoondream", config={"text": {"dim": 64, "n_heads": 4, "n_kv_heads": 2}, "vision": vision})
    layer = 4 * (48 * 48 + 48) + (48 * 72 + 72) + (72 * 48 + 48) + 4 * 48
    tower = 3 * 14 * 14 * 48 + 48 + 16 * 48 + 3 * layer + 2 * 48
    assert _towers(spec) == [("vision tower", tower), ("projector", 96 * 80 + 80 + 80 * 64 + 64)]
