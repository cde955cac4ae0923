"""results.csv as a table for people: what is looked at first, earlier names, predictions beside measurements."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from sample_rows import sample_records, write_sample_directory

from kvplan.runs.answers.beside import beside_phrases, predicted_of, ratio_sentences, ratios
from kvplan.runs.columns import COLUMN_NAMES, FIRST_COLUMNS, table_columns
from kvplan.runs.directory import read_trials
from kvplan.runs.rows import as_written_now, empty_row
from kvplan.runs.storage.reader import load_run
from kvplan.runs.storage.store import csv_text


def test_the_twenty_columns_that_people_use_come_first_and_no_column_is_always_empty() -> None:
    rows = [empty_row() | record["row"] for record in sample_records()]
    table = list(csv.DictReader(io.StringIO(csv_text(rows))))
    assert len(FIRST_COLUMNS) == 20 and set(FIRST_COLUMNS) <= set(COLUMN_NAMES)
    assert list(table[0])[:3] == ["trial_number", "status", "model_id"]
    first = [name for name in FIRST_COLUMNS if name in table[0]]
    assert list(table[0])[: len(first)] == first
    assert all(any(row[name] for row in table) for name in table[0]), "an empty column is no column"
    assert "client_bound" not in table[0] and "client_bound" in COLUMN_NAMES
    assert table_columns([]) == ()


def test_rows_under_earlier_names_are_read_by_sweeps_and_by_reports(tmp_path: Path) -> None:
    """planes, prediction_scale and frag_pct of directories that earlier versions wrote."""
    directory = write_sample_directory(tmp_path / "run")
    file = directory / "trials.jsonl"
    text = file.read_text().replace('"design_parts"', '"planes"').replace('"kv_waste_pct"', '"x_unknown"')
    file.write_text(text.replace('"learned_time_factor": null', '"prediction_scale": 1.5'))
    for row in (read_trials(file).records[0]["row"], load_run(directory).trials[0].row):
        assert row["design_parts"] and row["learned_time_factor"] == 1.5
        assert row["kv_waste_pct"] == row["frag_pct"]
    assert as_written_now({"url": "http://a"}).get("engine") is None
    assert as_written_now({})["engine"] == "kvplan"


def test_measured_and_predicted_stand_side_by_side_with_their_ratio() -> None:
    row = empty_row() | {
        "status": "ok", "num_blocks_total": 166, "num_blocks_predicted": 166, "max_running": 4,
        "pred_max_concurrency": 5, "output_throughput": 99.7, "pred_output_throughput": 48.0, "median_ttft_ms": 120.0,
        "pred_median_ttft_ms": 240.0,
    }  # fmt: skip
    assert beside_phrases(row, predicted_of(row)) == [
        "blocks 166 = 166 predicted",
        "at once 4 ≠ 5 predicted",
        "output 99.7 tokens/s, 48 predicted (2.08 times)",
        "median TTFT 120 ms, 240 predicted (0.50 times)",
    ]
    assert ratios(row) == {"throughput_over_pred": pytest.approx(2.077, abs=0.001), "ttft_over_pred": 0.5}
    slow = row | {"output_throughput": 72.0}
    assert ratio_sentences([row, slow])[0] == "output: measured / predicted 1.79 (1.50 to 2.08 in 2 trials)"
    assert beside_phrases(empty_row(), predicted_of(empty_row())) == []
