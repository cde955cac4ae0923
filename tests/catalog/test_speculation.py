"""Drafters: which one settings ask for, and what is loaded of it beside the model it drafts for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoints import LLAMA, Tensors, llama_tensors, write_checkpoint
from tiny_configs import own_config

from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import Drafter, ModelSpec
from kvplan.catalog.speculation.config import with_speculative_config
from kvplan.catalog.speculation.reading import with_speculation
from kvplan.errors import KvplanError, UsageError
from kvplan.settings import ServingSettings

EIGHT_BILLION = resolve_model("llama-3.1-8b")
EAGLE3: dict[str, Any] = own_config("eagle 3")
"""The sizes of EAGLE-3 heads for Llama 3.1 8B."""


def drafter(spec: ModelSpec, **settings: Any) -> Drafter:
    found = with_speculation(spec, ServingSettings(**settings)).spec.drafter
    assert found is not None
    return found


def write_config(folder: Path, config: dict[str, Any]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def test_without_speculation_nothing_changes() -> None:
    settings = ServingSettings()
    found = with_speculation(EIGHT_BILLION, settings)
    assert found.spec is EIGHT_BILLION
    assert found.settings is settings


def test_a_second_model_is_loaded_whole() -> None:
    found = drafter(EIGHT_BILLION, speculative_model="llama-3.2-1b", num_speculative_tokens=4)
    assert found.method == "draft_model"
    assert found.model is not None
    assert found.model.num_parameters == resolve_model("llama-3.2-1b").num_parameters
    assert (found.num_tokens, found.num_passes, found.shares_head) == (4, 4, False)


def test_looking_tokens_up_loads_nothing() -> None:
    found = drafter(EIGHT_BILLION, speculative_method="ngram", num_speculative_tokens=5)
    assert (found.method, found.model, found.num_passes) == ("ngram", None, 0)


def test_an_eagle3_head_has_its_own_layer_join_and_head_over_a_smaller_vocabulary(tmp_path: Path) -> None:
    path = write_config(tmp_path / "eagle3-llama", EAGLE3)
    found = drafter(EIGHT_BILLION, speculative_model=path, num_speculative_tokens=3)
    assert found.method == "eagle3"
    assert found.model is not None
    attention = (4096 + 2 * 1024) * 2 * 4096 + 4096 * 4096
    expected = attention + 3 * 4096 * 14336 + 3 * 4096 * 4096 + 32000 * 4096 + 4 * 4096
    assert found.model.num_parameters == expected
    assert found.model.num_layers == 1


def test_an_eagle_head_uses_the_embedding_and_the_head_of_its_target(tmp_path: Path) -> None:
    config = {key: value for key, value in EAGLE3.items() if key != "draft_vocab_size"}
    path = write_config(tmp_path / "head", config)
    found = drafter(EIGHT_BILLION, speculative_method="eagle", speculative_model=path, num_speculative_tokens=3)
    assert found.model is not None
    layer = EIGHT_BILLION.layers[0]
    assert found.model.num_parameters == sum(each.num_elements for each in layer.all_tensors) + 2 * 4096 * 4096
    assert found.shares_head


def test_an_eagle3_checkpoint_is_read_by_its_headers(tmp_path: Path) -> None:
    """Its only layer is called midlayer; the embedding in it is not loaded."""
    small = LLAMA | {"num_hidden_layers": 1, "draft_vocab_size": 32}
    tensors: Tensors = {
        name.replace("model.layers.0.", "midlayer."): each
        for name, each in llama_tensors(small, "F16", head=False).items()
    }
    tensors |= {"fc.weight": ("F16", (64, 192)), "lm_head.weight": ("F16", (32, 64))}
    folder = write_checkpoint(tmp_path / "eagle3", small, tensors)
    target = resolve_model(str(write_checkpoint(tmp_path / "target", LLAMA, llama_tensors(LLAMA))))
    found = drafter(target, speculative_model=str(folder), num_speculative_tokens=2)
    assert found.model is not None
    stored = found.model.checkpoint
    assert stored is not None
    assert len(stored.layers) == 1
    assert {weights.kind for weights in stored.outside} == {"head", "other"}


def test_medusa_heads_each_have_a_block_and_an_output_matrix(tmp_path: Path) -> None:
    config = {"medusa_num_heads": 3, "medusa_num_layers": 1, "base_model_name_or_path": "a model"}
    path = write_config(tmp_path / "medusa", config)
    found = drafter(EIGHT_BILLION, speculative_model=path, num_speculative_tokens=3)
    assert found.method == "medusa"
    assert found.model is not None
    assert found.model.num_parameters == 3 * (4096 * 4096 + 128256 * 4096)
    assert (found.model.num_layers, found.num_passes) == (0, 1)


@pytest.mark.parametrize("name", ["deepseek-v3", "glm-4.5-air", "mimo-7b-base", "qwen3.5-27b", "qwen3-next-80b-a3b"])
def test_a_checkpoints_own_layers_share_embedding_and_head(name: str) -> None:
    spec = resolve_model(name)
    found = drafter(spec, num_speculative_tokens=1)
    assert found.method == "mtp"
    assert found.model is not None
    assert found.model.num_parameters == sum(extra.num_parameters or 0 for extra in spec.extras if extra.kind[0] == "m")
    assert all(layer.mixers for layer in found.model.layers)


def test_the_number_of_own_layers_is_the_default() -> None:
    found = with_speculation(resolve_model("deepseek-v3"), ServingSettings(speculative_method="deepseek_mtp"))
    assert found.settings.num_speculative_tokens == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_speculative_tokens": 2}, "has no layers for multi-token prediction"),
        (
            {"speculative_method": "dflash", "num_speculative_tokens": 2},
            "does not size the speculative method 'dflash'",
        ),
        ({"speculative_model": "llama-3.2-1b"}, "draft_model needs a number of tokens"),
        ({"speculative_method": "eagle3", "num_speculative_tokens": 2}, "eagle3 needs a model"),
        ({"speculative_model": "gpt2", "num_speculative_tokens": 2}, "128,256 tokens, openai-community/gpt2 50,257"),
        ({"speculative_model": "no-such-model", "num_speculative_tokens": 2}, "Unknown model 'no-such-model'"),
    ],
)
def test_what_cannot_draft_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(KvplanError, match=message):
        with_speculation(EIGHT_BILLION, ServingSettings(**settings))


def test_an_odd_number_of_tokens_for_several_own_layers_is_refused_as_in_vllm() -> None:
    spec = resolve_model("deepseek-v3")
    doubled = replace(spec, extras=tuple(replace(extra, num_layers=2) for extra in spec.extras))
    with pytest.raises(KvplanError, match="a multiple of the 2 multi-token-prediction layers, not 3"):
        with_speculation(doubled, ServingSettings(num_speculative_tokens=3))


@pytest.mark.parametrize(("asked", "tokens"), [(0, 5), (7, 7)])
def test_dspark_drafts_a_block_or_what_is_said(asked: int, tokens: int) -> None:
    """vLLM 0.26 started DeepSeek-V4-Flash-0731 with 7 tokens (row Y019), whose config has 3 layers and blocks of 5."""
    settings = ServingSettings(speculative_method="dspark", num_speculative_tokens=asked)
    found = with_speculation(resolve_model("deepseek-v4-flash-0731"), settings)
    assert found.settings.num_speculative_tokens == tokens
    with pytest.raises(UsageError, match="does not size the speculative method 'dspark'"):
        with_speculation(resolve_model("deepseek-v3"), settings)


def test_the_json_of_vllm_becomes_settings() -> None:
    text = '{"method": "eagle3", "model": "a/Path", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 2}'
    found = with_speculative_config(ServingSettings(tensor_parallel_size=2), text)
    assert (found.speculative_method, found.speculative_model, found.num_speculative_tokens) == ("eagle3", "a/Path", 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mtp", "is not JSON"),
        ("[1]", "is not a JSON object"),
        ('{"methd": "mtp"}', "does not know 'methd'"),
        ('{"quantization": "fp8"}', "does not know 'quantization'"),
        ('{"method": 1}', "'method' of --speculative-config is not a text"),
        ('{"num_speculative_tokens": true}', "is not a whole number"),
        ('{"num_speculative_tokens": -1}', "--num-speculative-tokens must be at least 0, got -1"),
        ('{"draft_tensor_parallel_size": 2}', "draft_tensor_parallel_size is 2"),
    ],
)
def test_json_that_says_something_else_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        with_speculative_config(ServingSettings(), text)
