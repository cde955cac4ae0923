"""Models that see or hear: the language model inside, versions, and towers as vLLM 0.33's classes have them.

Small configs of each stand in ``tests/data/counted_configs.json``.
"""

from __future__ import annotations

from typing import Any

import pytest
from counted_configs import SMALL, counted_config

from kvplan.catalog.reader import read_config
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.steps.work import model_work
from kvplan.estimate.weights import size_weights


@pytest.mark.parametrize(
    ("architecture", "path", "model_type", "inside"),
    [
        ("Alpamayo2Super", "vlm_config.text_config", "qwen3_vl_text", "Qwen3ForCausalLM"),
        ("Cosmos3EdgeForConditionalGeneration", "text_config", "cosmos3_edge_text", "ArceeForCausalLM"),
        ("Emu3ForConditionalGeneration", "text_config", "emu3_text_model", "LlamaForCausalLM"),
        ("KananaVForConditionalGeneration", "text_config", "llama", "LlamaForCausalLM"),
        ("MiDashengLMModel", "text_config", "qwen2_5_omni_text", "Qwen2ForCausalLM"),
        ("MiniCPMO", "", "minicpmo", "Qwen2ForCausalLM"),
        ("MoonshotKimiaForCausalLM", "", "kimi_audio", "Qwen2ForCausalLM"),
        ("MossAudioModel", "language_config", "qwen3", "Qwen3ForCausalLM"),
        ("Ovis2_5", "llm_config", "qwen3", "Qwen3ForCausalLM"),
        ("Ovis2_6ForCausalLM", "llm_config", "qwen3", "Qwen3ForCausalLM"),
        ("VibeVoiceAsrForConditionalGeneration", "text_config", "qwen2", "Qwen2ForCausalLM"),
    ],
)
def test_wrappers_hold_the_language_model_that_vllm_makes(architecture, path, model_type, inside):
    """Classes that cannot be made without files or libraries, and what their code makes inside."""
    text: dict[str, Any] = {**SMALL, "model_type": model_type}
    for section in filter(None, reversed(path.split("."))):
        text = {section: text}
    plain = read_config({**SMALL, "architectures": [inside]}, model_id="plain")
    spec = read_config({**text, "torch_dtype": "bfloat16", "architectures": [architecture]}, model_id=architecture)
    assert (spec.layers, spec.tensors) == (plain.layers, plain.tensors)


def test_glm_4v_is_chatglm_with_a_tower() -> None:
    sizes = {"num_layers": 4, "padded_vocab_size": 128, "ffn_hidden_size": 96, "seq_length": 256}
    chatglm = {**SMALL, **sizes, "multi_query_attention": True, "multi_query_group_num": 2, "add_qkv_bias": True}
    plain = read_config({**chatglm, "architectures": ["ChatGLMModel"]}, model_id="chatglm")
    seeing = {**chatglm, "architectures": ["GLM4VForCausalLM"], "vision_config": {"hidden_size": 32}}
    spec = read_config(seeing, model_id="glm 4v")
    assert spec.num_parameters == plain.num_parameters
    assert [extra.kind for extra in spec.extras] == ["vision"]


def test_text_reads_no_experts_of_images() -> None:
    """All experts of text are read by many tokens, and what stands around them; those of images never are."""
    spec = read_config(counted_config("ernie vl, published"), model_id="ernie")
    weight_bytes = size_weights(spec, "bfloat16").total_bytes
    work = model_work(spec, weight_bytes, "bfloat16", ParallelLayout())
    images = 27 * 64 * 3 * 512 * 2560 * 2
    assert work.dense_bytes + work.expert_bytes == pytest.approx(weight_bytes - images, rel=1e-6)
    assert work.expert_bytes == pytest.approx(3 * images, rel=1e-3)


def test_the_towers_of_unlimited_ocr_are_those_of_deepseek_ocr() -> None:
    both = [
        read_config(counted_config("UnlimitedOCRForCausalLM", architectures=[name]), model_id="ocr")
        for name in ("UnlimitedOCRForCausalLM", "DeepseekOCRForCausalLM")
    ]
    assert both[0].extras == both[1].extras and all(each.num_parameters for each in both[0].extras)
