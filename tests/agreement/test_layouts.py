"""Planner and engine lay unlike layers into blocks by the same rule, each from its own reading of the config."""

from __future__ import annotations

from functools import cache

import pytest

from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import UsageError
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.kvplan.layout import KvLayout
from kvplan.estimate.kvplan.layout import plan_layout as planned_layout
from kvplan.paths import profiles_dir
from kvplan_engine import EngineConfig, EngineError
from kvplan_engine.blocks.layout import KvLayout as EngineLayout
from kvplan_engine.blocks.layout import plan_layout as engine_layout
from kvplan_engine.checkpoints.config_json import load_model_config
from kvplan_engine.description.kept_units import KeptUnit, kept_units
from kvplan_engine.description.mixers import FULL
from kvplan_engine.memory.plan import kv_layout

SCALED = "int8_per_token_head"
BYTES = {"float32": 4, "bfloat16": 2, "fp8": 1, SCALED: 1}
ENCODER_TOKENS = 77
"""Where neither side's config says how many an encoder gives."""
NAMES = sorted(file.stem for file in (profiles_dir() / "models").glob("*.json"))

described = cache(load_model_config)
"""By the engine; every test asks for every profile."""


@cache
def spec_of(name: str) -> ModelSpec:
    return resolve_model(name)


def both(name: str, block_size: int, dtype: str, kv_dtype: str) -> tuple[KvLayout, EngineLayout]:
    settings = CacheSettings(model_dtype=dtype, kv_dtype=kv_dtype)
    planned = planned_layout(spec_of(name), settings, block_size, encoder_tokens=ENCODER_TOKENS)
    model = described(name)
    sizes = BYTES | {"model": BYTES[dtype], "kv": BYTES[kv_dtype]}
    units = kept_units(model, encoder_tokens=ENCODER_TOKENS)
    return planned, engine_layout(units, block_size, sizes.__getitem__, has_scales=kv_dtype == SCALED)


def test_the_engine_describes_every_profile() -> None:
    assert all(map(described, NAMES))


@pytest.mark.parametrize(
    ("block_size", "dtype", "kv_dtype"),
    [
        (1, "bfloat16", "bfloat16"),
        (3, "bfloat16", "fp8"),
        (16, "float32", "float32"),
        (16, "bfloat16", "fp8"),
        (32, "bfloat16", "bfloat16"),
    ],
)
def test_every_profile_has_the_same_layout_on_both_sides(block_size: int, dtype: str, kv_dtype: str) -> None:
    for name in NAMES:
        planned, served = both(name, block_size, dtype, kv_dtype)
        assert planned.block_bytes == served.block_bytes, name
        assert [(each.kept.kind, each.kept.tokens, each.width, each.unit_bytes) for each in planned.groups] == [
            (each.kept.kind, each.kept.tokens, each.width, each.unit_bytes) for each in served.groups
        ], name


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_every_profile_with_scales_has_the_same_layout_or_is_refused_by_both(block_size: int) -> None:
    settings = CacheSettings(kv_dtype=SCALED)
    compared = 0
    for name in NAMES:
        model = described(name)
        config = EngineConfig(model=name, kv_cache_dtype=SCALED, block_size=block_size)
        try:
            served = kv_layout(config, model, "bfloat16", ENCODER_TOKENS)
        except EngineError as refusal:
            with pytest.raises(UsageError) as planner:
                planned_layout(spec_of(name), settings, block_size, encoder_tokens=ENCODER_TOKENS)
            assert "is for keys and values of KV heads" in refusal.message
            assert "is for keys and values of KV heads" in planner.value.message
            continue
        planned = planned_layout(spec_of(name), settings, block_size, encoder_tokens=ENCODER_TOKENS)
        assert planned.block_bytes == served.block_bytes, name
        assert [each.unit_bytes for each in planned.groups] == [each.unit_bytes for each in served.groups], name
        compared += 1
    assert compared >= 160


def test_a_page_with_scales_has_the_bytes_that_vllm_gives_it() -> None:
    """vllm/v1/kv_cache_interface.py, AttentionSpec.page_size_bytes: 2 x 16 x 8 x 128 integers, 2 x 16 x 8 float32."""
    planned, served = both("llama-3.1-8b", 16, "bfloat16", SCALED)
    assert planned.block_bytes == served.block_bytes == 32 * (2 * 16 * 8 * 128 + 2 * 16 * 8 * 4)
    rows_of_five = [KeptUnit(0, "keys", FULL, 2 * 5, num_scales=2), KeptUnit(0, "values", FULL, 2 * 5, num_scales=2)]
    odd = engine_layout(rows_of_five, 3, lambda _: 1, has_scales=True)
    assert odd.block_bytes == 2 * (32 + 24), "30 integers, 2 bytes unused, 6 scales"


@pytest.mark.parametrize("block_size", [1, 16])
def test_every_profile_takes_the_same_blocks_on_both_sides(block_size: int) -> None:
    for name in NAMES:
        planned, served = both(name, block_size, "bfloat16", "bfloat16")
        for num_tokens in (1, 127, 1024, 5000):
            for in_flight in (1, min(700, num_tokens)):
                blocks = planned.blocks_for(num_tokens, in_flight)
                assert blocks == served.blocks_for(num_tokens, in_flight), name
        num_blocks = planned.blocks_for(3000, 512)
        longest = planned.longest_sequence(num_blocks, 512, 100_000)
        assert longest == served.largest_sequence(num_blocks, 100_000, 512) >= 3000, name
