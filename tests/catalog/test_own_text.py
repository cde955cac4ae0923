"""Models that see whose language model is that of no other architecture: as vLLM 0.33's classes have it.

The counts are those of the classes' parameters on a CPU, without towers; what a layer keeps is that of its KVCacheSpec.
Muse Spark's are those of transformers 5.24's class, and published sizes those of the defaults of its configurations.
"""

from __future__ import annotations

from typing import Any

import pytest
from kept_elements import Kept, kept

from kvplan.catalog.reader import read_config
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.steps.work import model_work
from kvplan.estimate.weights import size_weights

_SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
_ALL: Kept = [("softmax", 64, None)] * 4
_LAST_FULL: Kept = [*[("softmax", 64, 32)] * 3, ("softmax", 64, None)]
_ARIA = {**_SMALL, "intermediate_size": 32, "moe_num_experts": 4, "moe_topk": 2}
_ERNIE = {
    **_SMALL,
    "moe_num_experts": [4, 4],
    "moe_intermediate_size": [32, 16],
    "moe_k": 2,
    "moe_layer_start_index": [1, 1],
    "moe_layer_end_index": [3, 3],
    "moe_num_shared_experts": 2,
}
_INTERN = {
    **_SMALL,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "rope_scaling": {"rope_type": "default", "rope_theta": 1e6, "fope_init_factor": 0.1, "fope_sep_head": True},
}
_TURNED = {**_INTERN["rope_scaling"], "num_inv_freq": 5}
_MOLMO = {**_SMALL, "head_dim": None, "intermediate_size": 192, "embedding_size": 144, "qkv_bias": True}
_GLIMMER = {**_SMALL, "model_type": "muse_glimmer_text", "sliding_window": 32}
_SPARK = {
    **_SMALL,
    "sliding_window": 32,
    "moe_intermediate_size": 32,
    "moe_hidden_size": 48,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
_COUNTED: dict[str, tuple[str, dict[str, Any], int, Kept]] = {
    "aria": ("AriaForConditionalGeneration", {"text_config": _ARIA}, 214_592, _ALL),
    "ernie vl": ("Ernie4_5_VLMoeForConditionalGeneration", _ERNIE, 233_560, _ALL),
    "ernie vl, every second layer": (
        "Ernie4_5_VLMoeForConditionalGeneration",
        {
            **_ERNIE,
            "head_dim": None,
            "num_hidden_layers": 5,
            "moe_layer_interval": 2,
            "moe_layer_start_index": [0, 0],
            "moe_layer_end_index": [4, 6],
            "moe_num_shared_experts": 0,
            "use_bias": True,
            "tie_word_embeddings": True,
        },
        201_808,
        [*_ALL, *_ALL[:1]],
    ),
    "intern-s1-pro": ("InternS1ProForConditionalGeneration", {"text_config": _INTERN}, 165_604, _ALL),
    "intern-s1-pro, more frequencies": (
        "InternS1ProForConditionalGeneration",
        {"text_config": {**_INTERN, "max_position_embeddings": 32768, "head_dim": 32, "num_attention_heads": 2}},
        182_480,
        [("softmax", 128, None)] * 4,
    ),
    "intern-s1-pro, stated frequencies": (
        "InternS1ProForConditionalGeneration",
        {"text_config": {**_INTERN, "max_position_embeddings": 4096, "rope_scaling": _TURNED}},
        165_668,
        _ALL,
    ),
    "molmo": ("MolmoForCausalLM", _MOLMO, 150_592, _ALL),
    "muse glimmer": ("MuseGlimmerForConditionalGeneration", {"text_config": _GLIMMER}, 156_736, _LAST_FULL),
    "muse glimmer, tied, listed layers": (
        "MuseGlimmerForConditionalGeneration",
        {
            "text_config": {
                **_GLIMMER,
                "tie_word_embeddings": True,
                "layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 2,
            }
        },
        156_736,
        [*_ALL[:2], *_LAST_FULL[:2]],
    ),
    "muse glimmer, text alone": ("MuseGlimmerForCausalLM", _GLIMMER, 156_736, _LAST_FULL),
    "muse spark": ("MuseSparkForConditionalGeneration", {"text_config": _SPARK}, 182_976, _LAST_FULL),
    "muse spark, five layers": (
        "MuseSparkForConditionalGeneration",
        {"text_config": {**_SPARK, "num_hidden_layers": 5}},
        224_608,
        [*_ALL[:1], *_LAST_FULL],
    ),
    "muse spark, dense layers": (
        "MuseSparkForConditionalGeneration",
        {"text_config": {**_SPARK, "mlp_layer_types": ["dense", "sparse"] * 2}},
        169_984,
        _LAST_FULL,
    ),
}


def _read(architecture: str, own: dict[str, Any]) -> ModelSpec:
    return read_config({"torch_dtype": "bfloat16", **own, "architectures": [architecture]}, model_id="small")


@pytest.mark.parametrize("name", _COUNTED)
def test_small_configs_as_their_classes_have_them(name: str) -> None:
    architecture, own, parameters, layers = _COUNTED[name]
    spec = _read(architecture, own)
    assert spec.num_parameters == parameters
    assert kept(spec) == layers


def test_glm_4v_is_chatglm_with_a_tower() -> None:
    sizes = {"num_layers": 4, "padded_vocab_size": 128, "ffn_hidden_size": 96, "seq_length": 256}
    chatglm = {**_SMALL, **sizes, "multi_query_attention": True, "multi_query_group_num": 2, "add_qkv_bias": True}
    seeing = _read("GLM4VForCausalLM", {**chatglm, "vision_config": {"hidden_size": 32}})
    assert seeing.num_parameters == _read("ChatGLMModel", chatglm).num_parameters
    assert [extra.kind for extra in seeing.extras] == ["vision"]


_ERNIE_28B = {
    **_ERNIE,
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
    architecture, own, *_ = _COUNTED[name]
    inner = own.get("text_config", own)
    changed = {**inner, key: value}
    with pytest.raises(KvplanError, match=key):
        _read(architecture, {"text_config": changed} if inner is not own else changed)
