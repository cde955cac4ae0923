"""A fleet's play against the engine without tensors: every request and every step of a trace's beginning."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet_checks.beside import compared
from fleet_checks.own_engine import as_own_engine, engine_cases, run_engine
from fleet_checks.playing import played
from fleet_checks.trace import longest, shortened

EXCERPT = Path(__file__).parents[1] / "data" / "mooncake_conversation_100.jsonl"
REQUESTS = shortened(EXCERPT, 60, 16, 16.0)
CASES = list(engine_cases(longest(REQUESTS)))


@pytest.mark.parametrize(("name", "config"), CASES, ids=lambda value: str(value)[:20])
def test_hits_steps_and_preemptions_are_the_engines(name: str, config: object) -> None:
    from kvplan_engine.config import EngineConfig

    assert isinstance(config, EngineConfig)
    record, layout = run_engine(REQUESTS, config)
    play = played(REQUESTS, layout, config.max_num_seqs, config.max_num_batched_tokens, as_own_engine)
    found = compared(play, record)
    assert found.is_equal, found
    assert found.num_requests == 60 and found.hit_tokens > 0
