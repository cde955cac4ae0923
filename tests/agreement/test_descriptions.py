"""Planner and engine read a config each in its own code, and find the same model: weights, sizes, what layers keep."""

from __future__ import annotations

from typing import Any

import pytest
from descriptions import described_parts, described_sizes, planned_parts, planned_sizes
from small_configs import small_configs

from kvplan.catalog.models import find_profile, profile_names, read_profile
from kvplan.catalog.reader import read_config
from kvplan.catalog.registry import known_architectures
from kvplan.catalog.spec import ModelSpec
from kvplan_engine.checkpoints.config_json import load_model_config
from kvplan_engine.checkpoints.families import KNOWN_ARCHITECTURES
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


def test_both_know_the_same_architectures_and_each_is_compared() -> None:
    shipped = {name for profile in profile_names() for name in _config(profile)["architectures"]}
    assert set(KNOWN_ARCHITECTURES) == set(known_architectures()) == shipped | set(SMALL)
    assert not shipped & set(SMALL)
