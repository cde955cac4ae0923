"""Planner and engine read a config each in its own code, and find the same model: names, sizes, what layers keep."""

from __future__ import annotations

from typing import Any

import pytest
from descriptions import described_parts, described_sizes, planned_parts, planned_sizes
from small_configs import small_configs

from kvplan.catalog.models import find_profile, profile_names, read_profile
from kvplan.catalog.reader import read_config
from kvplan.catalog.registry import known_architectures
from kvplan.catalog.spec import CompressedAttention, ModelSpec, SoftmaxAttention
from kvplan_engine.checkpoints.config_json import load_model_config
from kvplan_engine.checkpoints.families import (
    KNOWN_ARCHITECTURES,
)
from kvplan_engine.description.model import ModelDescription

SMALL = small_configs()


def _config(name: str) -> dict[str, Any]:
    profile = find_profile(name)
    assert profile is not None
    config: dict[str, Any] = profile["config"]
    return config


def _assert_same(spec: ModelSpec, model: ModelDescription) -> None:
    assert described_sizes(model) == planned_sizes(spec)
    for block_size, kv_dtype in ((16, "bfloat16"), (24, "fp8")):
        described = described_parts(model, block_size=block_size, kv_dtype=kv_dtype)
        assert described == planned_parts(spec, block_size=block_size, kv_dtype=kv_dtype)


@pytest.mark.parametrize("name", profile_names())
def test_a_profile_is_the_same_model_to_both(name: str) -> None:
    profile = find_profile(name)
    assert profile is not None
    _assert_same(read_profile(profile), load_model_config(profile["config"]))


@pytest.mark.parametrize("architecture", SMALL)
def test_an_architecture_without_a_profile_is_the_same_model_to_both(architecture: str) -> None:
    config = SMALL[architecture]
    _assert_same(read_config(config, model_id=architecture), load_model_config(config))


@pytest.mark.parametrize(
    ("architecture", "size"),
    [
        ("Qwen3ForCausalLM", 128),
        ("SeedOssForCausalLM", 128),
        ("Ministral3ForCausalLM", 128),
        ("GptOssForCausalLM", 64),
        ("MiniMaxM2ForCausalLM", 128),
        ("HYV3ForCausalLM", 128),
        ("AfmoeForCausalLM", 128),
        ("LagunaForCausalLM", 128),
        ("MiniMaxM3SparseForCausalLM", 128),
        ("Step3p5ForCausalLM", 128),
        ("MiMoV2FlashForCausalLM", 192),
        ("NemotronHForCausalLM", 128),
        ("DeepseekV4ForCausalLM", 512),
        ("Qwen3MoeForCausalLM", None),
    ],
)
def test_without_head_dim_heads_are_those_of_the_class_in_transformers(architecture: str, size: int | None) -> None:
    """A class that has no default of its own shares the hidden size among the heads."""
    shipped = (_config(name) for name in profile_names())
    config = next((each for each in shipped if each["architectures"] == [architecture]), None) or SMALL[architecture]
    config = {key: value for key, value in config.items() if key != "head_dim"}
    spec = read_config(config, model_id=architecture)
    _assert_same(spec, load_model_config(config))
    mixers = [mixer for layer in spec.layers for mixer in layer.mixers]
    sizes = {
        mixer.head_size if isinstance(mixer, CompressedAttention) else mixer.head_size_k
        for mixer in mixers
        if isinstance(mixer, (SoftmaxAttention, CompressedAttention))
    }
    assert (size or config["hidden_size"] // config["num_attention_heads"]) in sizes


def test_both_know_the_same_architectures_and_each_is_compared() -> None:
    shipped = {name for profile in profile_names() for name in _config(profile)["architectures"]}
    assert set(KNOWN_ARCHITECTURES) == set(known_architectures()) == shipped | set(SMALL)
    assert not shipped & set(SMALL)
