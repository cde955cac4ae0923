"""What the engine's allocator takes for a sequence, beside what the planner says that the architecture needs."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.kvplan.layout import KvPart, layer_parts
from kvplan.paths import profiles_dir
from kvplan_engine.blocks.block_pool import BlockPool
from kvplan_engine.blocks.block_table import BlockTable, layout_waste_pct
from kvplan_engine.blocks.layout import KvLayout, plan_layout
from kvplan_engine.checkpoints.config_json import load_model_config
from kvplan_engine.description.kept_units import kept_units

BLOCK_SIZE, NUM_TOKENS, ENCODER_TOKENS = 16, 1024, 77
BYTES = {"float32": 4, "bfloat16": 2, "model": 2, "kv": 2}
NAMES = sorted(file.stem for file in (profiles_dir() / "models").glob("*.json"))
# Keys of 192 and values of 128 elements pack badly; vectors of many sizes, one for 4 and one for 128 tokens.
EXCEPTIONS = {name: Fraction(15, 100) for name in NAMES if name.startswith(("mimo-v2", "deepseek-v4"))}


def needed_bytes(spec: ModelSpec) -> Fraction:
    """What the architecture keeps of NUM_TOKENS tokens, by the planner's reading of the config."""
    cache = CacheSettings(model_dtype="bfloat16", kv_dtype="bfloat16")
    parts = [part for layer in spec.layers for part in layer_parts(layer, cache, NUM_TOKENS, ENCODER_TOKENS)]
    return sum((part.num_bytes * _kept_share(part) for part in parts), Fraction(0))


def _kept_share(part: KvPart) -> Fraction:
    if part.kept.kind == "state" or part.kept.tokens is None:
        return Fraction(1)
    return Fraction(min(part.kept.tokens, NUM_TOKENS), NUM_TOKENS)


def allocated_bytes(layout: KvLayout) -> int:
    """Blocks in use once the pool has served a prompt of NUM_TOKENS - 1 tokens, and the token that follows it."""
    pool = BlockPool(layout.blocks_for(NUM_TOKENS, NUM_TOKENS), layout)
    table = BlockTable(pool)
    table.reserve(0, NUM_TOKENS - 1)
    table.reserve(NUM_TOKENS - 1, NUM_TOKENS)
    assert layout_waste_pct(layout, [(table, NUM_TOKENS - 1)]) is not None
    return pool.num_used_blocks * layout.block_bytes


@pytest.mark.parametrize("name", NAMES)
def test_a_sequence_takes_what_its_layers_keep(name: str) -> None:
    layout = plan_layout(
        kept_units(load_model_config(name), encoder_tokens=ENCODER_TOKENS), BLOCK_SIZE, BYTES.__getitem__
    )
    waste = allocated_bytes(layout) / needed_bytes(resolve_model(name)) - 1
    assert 0 <= waste <= EXCEPTIONS.get(name, Fraction(2, 100)), f"{float(waste):.1%}"


def test_the_reading_of_a_run_is_the_same_waste() -> None:
    """gpt-oss: at 1,024 tokens a window of 128 holds eight blocks, and a ninth while tokens of two are in sight."""
    model = load_model_config("gpt-oss-20b")
    layout = plan_layout(kept_units(model), BLOCK_SIZE, BYTES.__getitem__)
    pool = BlockPool(layout.blocks_for(NUM_TOKENS, NUM_TOKENS), layout)
    table = BlockTable(pool)
    table.reserve(0, 1000)
    table.reserve(1000, 1001)
    full, window = layout.groups
    held = (63 * full.width + 9 * window.width) * layout.block_bytes
    needed = 63 * full.unit_bytes + window.unit_bytes * (63 * 16 - (1000 - 128 + 1)) / 16
    assert layout_waste_pct(layout, [(table, 1000)]) == pytest.approx(100 * (held / needed - 1))
    assert layout_waste_pct(layout, []) is None
