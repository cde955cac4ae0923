"""The language models inside of vision models answer as transformers' classes do where the prompt is text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from dense_models import DenseCheckpoint, randomise
from small_models import SIZES, STATES
from test_dense_equality import check_answers, engine_of, prompts_of

_VISION: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_CLIP = _VISION | {"model_type": "clip_vision_model", "image_size": 14, "patch_size": 7, "projection_dim": 8}
_PIXTRAL = _VISION | {"model_type": "pixtral", "image_size": 14, "patch_size": 7, "head_dim": 8}
_QWEN = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 64, "patch_size": 7}
_SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}

WRAPPERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llava": ("LlavaConfig", _CLIP, SIZES | {"model_type": "llama"}),
    "mistral3": ("Mistral3Config", _PIXTRAL, SIZES | {"model_type": "mistral", "head_dim": 16, "sliding_window": None}),
    "qwen2_5_vl": (
        "Qwen2_5_VLConfig",
        _QWEN | {"fullatt_block_indexes": [0]},
        SIZES | {"model_type": "qwen2_5_vl_text", "rope_parameters": _SECTIONS},
    ),
    "qwen3_vl": (
        "Qwen3VLConfig",
        _QWEN | {"deepstack_visual_indexes": [0]},
        SIZES | {"model_type": "qwen3_vl_text", "head_dim": 16, "rope_parameters": _SECTIONS},
    ),
    "idefics3": ("Idefics3Config", _VISION | {"image_size": 14, "patch_size": 7}, SIZES | {"model_type": "llama"}),
    "smolvlm": ("SmolVLMConfig", _VISION | {"image_size": 14, "patch_size": 7}, SIZES | {"model_type": "llama"}),
    "llava_next": ("LlavaNextConfig", _CLIP, SIZES | {"model_type": "mistral", "sliding_window": None, "head_dim": 16}),
    "llava_onevision": ("LlavaOnevisionConfig", _CLIP, SIZES | {"model_type": "qwen2"}),
    "qwen2_vl": (
        "Qwen2VLConfig",
        {"depth": 1, "embed_dim": 16, "num_heads": 2, "hidden_size": 64, "patch_size": 7},
        SIZES | {"model_type": "qwen2_vl_text", "rope_parameters": _SECTIONS},
    ),
    "qwen3_5": ("Qwen3_5Config", _QWEN, STATES["qwen3_5"].values | {"model_type": "qwen3_5_text"}),
    "qwen3_5_moe": ("Qwen3_5MoeConfig", _QWEN, STATES["qwen3_5-moe"].values | {"model_type": "qwen3_5_moe_text"}),
    "internvl": (
        "InternVLConfig",
        _VISION | {"image_size": [14, 14], "patch_size": [7, 7]},
        SIZES | {"model_type": "qwen3", "head_dim": 16},
    ),
}
"""The wrapper's config class, what its vision tower is made with, and its text."""


class WrapperCheckpoint(DenseCheckpoint):
    """A saved random vision model: ``path`` for the engine, ``model`` for transformers."""

    def __init__(self, name: str, folder: Path) -> None:
        torch.manual_seed(list(WRAPPERS).index(name))
        class_name, vision, text = WRAPPERS[name]
        config = getattr(transformers, class_name)(vision_config=vision, text_config=text, tie_word_embeddings=False)
        self.shortest = 1
        self.model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
        randomise(self.model)
        self.path = folder / name
        self.model.save_pretrained(self.path)


@pytest.mark.parametrize("name", WRAPPERS)
def test_text_is_answered_as_by_transformers(name: str, tmp_path: Path) -> None:
    checkpoint = WrapperCheckpoint(name, tmp_path)
    check_answers(checkpoint, engine_of(checkpoint.path), prompts_of(checkpoint))
