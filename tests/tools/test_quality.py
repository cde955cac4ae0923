"""Tools that compare: qualities of caches and activations, fleets, and the table of models."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from small_traces import write_trace

import check_fleet_plans
import model_table
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


HINT = "python tools/model_table.py --write"


def test_the_page_lists_every_architecture_and_claims_nothing_untrue() -> None:
    now, shown = model_table.rows(), model_table.rows_of_page()
    assert [row.architecture for row in shown] == [row.architecture for row in now], HINT
    claims = {(row.architecture, column) for row in shown for column, flag in _flags(row) if flag}
    untrue = claims - {(row.architecture, column) for row in now for column, flag in _flags(row) if flag}
    assert not untrue, HINT


def test_the_counts_of_the_page_are_those_of_its_rows() -> None:
    shown = model_table.table(model_table.rows_of_page())
    assert model_table.PAGE.read_text(encoding="utf-8").endswith(shown), HINT


def test_the_page_names_what_vllm_serves_and_kvplan_does_not() -> None:
    assert model_table.refused_by_kind() in model_table.PAGE.read_text(encoding="utf-8"), HINT


def test_what_is_sized_can_be_measured_and_what_is_equal_runs() -> None:
    rows = model_table.rows()
    assert len(rows) > 170
    assert all(row.sized and row.measured for row in rows)
    assert not [row.architecture for row in rows if row.equal and not row.native]


def _flags(row: model_table.Row) -> list[tuple[int, bool]]:
    return [(column, cell == "yes") for column, cell in enumerate(row.cells[1:])]
