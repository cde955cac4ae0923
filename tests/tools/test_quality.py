"""Tools that compare: qualities of caches and activations, and fleets."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from small_traces import write_trace

import check_fleet_plans
from activation_quality import line_of
from kv_quality import Quality, print_table


def test_the_table_compares_every_format_with_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    exact = Quality("float32", 46_080, (math.log(2), math.log(8)))
    other = Quality("fp8", 11_520, (math.log(2), math.log(8) + 2 * math.log(1.01)))
    assert exact.perplexity == pytest.approx(4.0)
    print_table([exact, other])
    assert [line.split() for line in capsys.readouterr().out.splitlines()[2:]] == [
        ["float32", "46,080", "4.0000", "+0.000%", "0.00000", "nat"],
        ["fp8", "11,520", "4.0400", "+1.000%", "0.00995", "nat"],
    ]


def test_a_line_compares_rounded_with_exact() -> None:
    exact = (math.log(2), math.log(8))
    rounded = (math.log(2) - math.log(1.01), math.log(8) + 3 * math.log(1.01))
    assert line_of("model-q4_0", exact, rounded).split() == [
        "model-q4_0",
        "4.0000",
        "4.0400",
        "+1.000%",
        "0.01990",
        "nat",
    ]


def test_a_small_trace_has_no_cheaper_fleet_among_a_dozen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_trace(tmp_path / "trace.jsonl", count=80, seconds=40.0, seed=7)
    words = ["llama-3.1-8b", str(path), "--slo", "p90_ttft:1500", "--gpu", "l4,l40s", "--max-gpus", "8"]
    assert check_fleet_plans.main([*words, "--window", "20s", "--count", "12"]) == 0
    out = capsys.readouterr().out
    assert "12 random fleets, 0 cheaper that keep the level" in out
