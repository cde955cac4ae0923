"""Planner and engine lay unlike layers into blocks by the same rule, each from its own reading of the config."""

from __future__ import annotations

from functools import cache

import pytest

from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.kv_cache import CacheSettings
from kvplan.estimate.kvplan.layout import KvLayout
from kvplan.estimate.kvplan.layout import plan_layout as planned_layout
from kvplan.paths import profiles_dir
from kvplan_engine import EngineError
from kvplan_engine.blocks.layout import KvLayout as EngineLayout
from kvplan_engine.blocks.layout import plan_layout as engine_layout
from kvplan_engine.checkpoints.config_json import load_model_config
from kvplan_engine.description.kept_units import kept_units
from kvplan_engine.description.model import ModelDescription

BYTES = {"float32": 4, "bfloat16": 2, "fp8": 1}
ENCODER_TOKENS = 77
"""Where neither side's config says how many an encoder gives."""
NAMES = sorted(file.stem for file in (profiles_dir() / "models").glob("*.json"))


@cache
def described(name: str) -> ModelDescription | None:
    try:
        return load_model_config(name)
    except EngineError:
        return None


DESCRIBED = [name for name in NAMES if described(name) is not None]


@cache
def spec_of(name: str) -> ModelSpec:
    return resolve_model(name)


def both(name: str, block_size: int, dtype: str, kv_dtype: str) -> tuple[KvLayout, EngineLayout]:
    settings = CacheSettings(model_dtype=dtype, kv_dtype=kv_dtype)
    planned = planned_layout(spec_of(name), settings, block_size, encoder_tokens=ENCODER_TOKENS)
    model = described(name)
    assert model is not None
    sizes = BYTES | {"model": BYTES[dtype], "kv": BYTES[kv_dtype]}
    return planned, engine_layout(kept_units(model, encoder_tokens=ENCODER_TOKENS), block_size, sizes.__getitem__)


def test_the_engine_describes_every_profile() -> None:
    assert len(DESCRIBED) == len(NAMES)


@pytest.mark.parametrize("block_size", [1, 3, 16, 32])
@pytest.mark.parametrize(("dtype", "kv_dtype"), [("bfloat16", "bfloat16"), ("bfloat16", "fp8"), ("float32", "float32")])
def test_every_profile_has_the_same_layout_on_both_sides(block_size: int, dtype: str, kv_dtype: str) -> None:
    for name in DESCRIBED:
        planned, served = both(name, block_size, dtype, kv_dtype)
        assert planned.block_bytes == served.block_bytes, name
        assert [(each.kept.kind, each.kept.tokens, each.width, each.unit_bytes) for each in planned.groups] == [
            (each.kept.kind, each.kept.tokens, each.width, each.unit_bytes) for each in served.groups
        ], name


@pytest.mark.parametrize("block_size", [1, 16])
def test_every_profile_takes_the_same_blocks_on_both_sides(block_size: int) -> None:
    for name in DESCRIBED:
        planned, served = both(name, block_size, "bfloat16", "bfloat16")
        for num_tokens in (1, 127, 1024, 5000):
            for in_flight in (1, min(700, num_tokens)):
                blocks = planned.blocks_for(num_tokens, in_flight)
                assert blocks == served.blocks_for(num_tokens, in_flight), name
        num_blocks = planned.blocks_for(3000, 512)
        longest = planned.longest_sequence(num_blocks, 512, 100_000)
        assert longest == served.largest_sequence(num_blocks, 100_000, 512) >= 3000, name
