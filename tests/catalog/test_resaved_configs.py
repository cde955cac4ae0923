"""Configs as transformers 5 writes them: shipped ones loaded and saved again, and its classes' own keys."""

from __future__ import annotations

from typing import Any

import pytest
from counted_configs import counted_config

from kvplan.catalog.models import profiles
from kvplan.catalog.reader import read_config
from kvplan.catalog.spec import CompressedAttention, SoftmaxAttention, StateMixer
from resaved_configs import changes, saved_by_transformers

_SHIPPED = {profile["name"]: profile["config"] for profile in profiles()}
_NOT_LOADED = (
    *(
        "chatglm3-6b",
        "deepseek-moe-16b",
        "deepseek-v4.1-flash",
        "exaone-4.0-32b",
        "internlm2.5-7b",
        "kimi-k2",
        "kimi-k3",
    ),
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


def _written(name: str) -> tuple[Any, ...]:
    config = saved_by_transformers(counted_config(f"{name}, its class's keys"))
    return tuple(layer.mixer for layer in read_config(config, model_id="written").layers)


def test_layer_types_say_which_layers_keep_what():
    assert [isinstance(mixer, StateMixer) for mixer in _written("kimi linear")] == [True, True, False, True]
    assert [mixer.window_tokens for mixer in _written("inkling")] == [512, 512, None, 512]
    assert [mixer.num_heads for mixer in _written("step 3.7") if isinstance(mixer, SoftmaxAttention)] == [4, 6, 6, 4]
    assert [mixer.indexer is not None for mixer in _written("minimax m3")] == [False, True, True, False]
    compressed = [mixer for mixer in _written("deepseek v4") if isinstance(mixer, CompressedAttention)]
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
