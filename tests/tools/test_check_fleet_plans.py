"""Random fleets beside what a plan calls the cheapest."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_traces import write_trace

import check_fleet_plans


def test_a_small_trace_has_no_cheaper_fleet_among_a_dozen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_trace(tmp_path / "trace.jsonl", count=80, seconds=40.0, seed=7)
    words = ["llama-3.1-8b", str(path), "--slo", "p90_ttft:1500", "--gpu", "l4,l40s", "--max-gpus", "8"]
    assert check_fleet_plans.main([*words, "--window", "20s", "--count", "12"]) == 0
    out = capsys.readouterr().out
    assert "12 random fleets, 0 cheaper that keep the level" in out
