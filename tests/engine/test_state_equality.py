"""Families with gated delta rules answer as transformers does, over a pool with a group of states.

As in ``test_dense_equality``, everything at once: ragged prompts, chunks, blocks of three tokens, preemption by
recomputing and by swapping, the prefix cache, KV tiers. A prefix is adopted with the state behind exactly its tokens.
transformers' full forward is the witness.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dense_models import DenseCheckpoint
from state_models import STATES, as_published
from test_dense_equality import check_answers, engine_of, prompts_of
from test_window_equality import SWAP, TIERS, shrink


@pytest.mark.parametrize(
    ("name", "settings"),
    [*((name, {}) for name in STATES), ("qwen3_5", SWAP), ("qwen3_5", TIERS)],
    ids=[*STATES, "qwen3_5-swap", "qwen3_5-tiers"],
)
def test_answers_are_those_of_transformers(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = DenseCheckpoint(name, tmp_path, STATES)
    as_published(name, checkpoint.path)
    llm = engine_of(checkpoint.path, **settings)
    groups = llm.engine.scheduler.pool.layout.groups
    assert groups[-1].is_state
    shrink(llm, 1.2 if settings is TIERS else 2.0)
    prompts = prompts_of(checkpoint)
    check_answers(checkpoint, llm, prompts)
    stats = llm.get_stats()
    assert stats["num_preemptions"] > 0
    assert (stats["num_swaps"] > 0) == (settings is SWAP)
    check_answers(checkpoint, llm, prompts[-1:])
    check_answers(checkpoint, llm, prompts[-1:])
    assert llm.get_stats()["prefix_cache_hits"] > 0
    assert llm.get_stats()["num_free_blocks"] == llm.get_stats()["num_blocks"]
