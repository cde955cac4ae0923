"""Families whose layers keep different tokens answer as transformers does, over a pool of several groups of layers.

As in ``test_dense_equality``, everything at once: ragged prompts, chunks, blocks of three tokens, preemption by
recomputing and by swapping, the prefix cache, KV tiers. Windows give back what lies before them all the while.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dense_models import DenseCheckpoint
from engine_answers import shrink
from test_dense_equality import check_answers, engine_of, prompts_of
from window_models import WINDOWED

SWAP: dict[str, Any] = {"preemption_mode": "swap", "swap_space": 1 << 22}
TIERS: dict[str, Any] = {"kv_host_cache_bytes": 1 << 22, "kv_load_policy": "always", "block_size": 16}


@pytest.mark.parametrize(
    ("name", "settings"),
    [*((name, {}) for name in WINDOWED), ("gemma3", SWAP), ("gemma3", TIERS)],
    ids=[*WINDOWED, "gemma3-swap", "gemma3-tiers"],
)
def test_answers_are_those_of_transformers(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = DenseCheckpoint(name, tmp_path, WINDOWED)
    llm = engine_of(checkpoint.path, **settings)
    groups = llm.engine.scheduler.pool.layout.groups
    assert [group.kept.kind for group in groups] == ["full", "window"]
    shrink(llm, 1.0)
    prompts = prompts_of(checkpoint)
    check_answers(checkpoint, llm, prompts)
    stats = llm.get_stats()
    assert stats["num_preemptions"] > 0
    assert (stats["num_swaps"] > 0) == (settings is SWAP)
    check_answers(checkpoint, llm, prompts[-1:])
    check_answers(checkpoint, llm, prompts[-1:])
    assert llm.get_stats()["prefix_cache_hits"] > 0
    assert llm.get_stats()["num_free_blocks"] == llm.get_stats()["num_blocks"]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("block_size", [16])
def test_other_blocks_and_the_reference(backend: str, block_size: int, tmp_path: Path) -> None:
    checkpoint = DenseCheckpoint("gemma3", tmp_path, WINDOWED)
    llm = engine_of(checkpoint.path, block_size=block_size, attention_backend=backend)
    check_answers(checkpoint, llm, prompts_of(checkpoint))
