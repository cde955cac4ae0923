"""Reading a run directory: whatever a sweep left behind."""

from __future__ import annotations

import json
import math

import pytest
from report_helpers import records, sample_directory, sample_run, trial, write_trials

from kvplan.errors import KvplanError
from kvplan.runs.shape import bounded_numbers
from kvplan.runs.storage.reader import load_run, trial_frame


def test_every_trial_and_column_is_read(tmp_path):
    run = sample_run(tmp_path)
    assert [one.row for one in run.trials] == [record["row"] for record in records()]
    assert {column.name for column in run.columns} == set(records()[0]["row"])
    assert run.notes == ()
    assert run.trials[0].series is not None


def test_a_torn_last_line_is_left_out_and_said(tmp_path):
    path = sample_directory(tmp_path) / "trials.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:-200])
    run = load_run(tmp_path)
    assert len(run.trials) == len(records()) - 1
    assert run.notes == (f"Line {len(records())} of trials.jsonl could not be read and was skipped.",)


def test_a_line_torn_inside_a_character_is_left_out(tmp_path):
    path = write_trials(tmp_path, records()[:2]) / "trials.jsonl"
    path.write_bytes(path.read_bytes() + b'{"row": {"model_id": "\xe4\xb8')
    assert len(load_run(tmp_path).trials) == 2


def test_without_manifest_and_summary_the_rows_still_speak(tmp_path):
    run = load_run(write_trials(tmp_path, records()[:3]))
    assert len(run.trials) == 3
    assert {column.name for column in run.columns} == set(records()[0]["row"])
    assert len(run.notes) == 2 and all("is missing" in note for note in run.notes)


@pytest.mark.parametrize("content", ["", "not json", "[1, 2]"])
def test_a_broken_manifest_costs_only_itself(tmp_path, content):
    (sample_directory(tmp_path) / "manifest.json").write_text(content)
    run = load_run(tmp_path)
    assert run.manifest == {} and len(run.trials) == len(records())
    assert len(run.notes) == 1 and run.notes[0].startswith("manifest.json")


def test_of_a_trial_written_twice_the_last_counts(tmp_path):
    again = records()[0]
    again["row"]["output_throughput"] = 12345.0
    run = load_run(write_trials(tmp_path, [*records()[:3], again]))
    assert len(run.trials) == 3
    assert run.trial(again["row"]["trial_id"]).number("output_throughput") == 12345.0


@pytest.mark.parametrize("series", [None, [], {"seconds": []}, {"seconds": [0, "x"]}, {"seconds": [0.0, float("nan")]}])
def test_a_series_that_is_none_is_no_series(tmp_path, series):
    record = records()[0] | {"series": series}
    assert load_run(write_trials(tmp_path, [record])).trials[0].series is None


def test_a_series_of_another_length_is_dropped(tmp_path):
    record = records()[0]
    record["series"]["kv_usage"].pop()
    assert "kv_usage" not in load_run(write_trials(tmp_path, [record])).trials[0].series


def test_a_missing_directory_is_an_error_with_a_hint(tmp_path):
    with pytest.raises(KvplanError, match="There is no directory") as caught:
        load_run(tmp_path / "nowhere")
    assert caught.value.hint


@pytest.mark.parametrize("content", ["", "\n\n", "{", '{"row": 5}\n', json.dumps([1])])
def test_a_directory_without_a_trial_is_an_error_with_a_hint(tmp_path, content):
    (tmp_path / "trials.jsonl").write_text(content)
    with pytest.raises(KvplanError, match="no finished trial") as caught:
        load_run(tmp_path)
    assert "--resume" in caught.value.hint


@pytest.mark.parametrize("value", [None, "12", True, float("nan"), float("inf"), [1]])
def test_only_finite_numbers_are_numbers(value):
    assert trial(max_num_seqs=value).number("max_num_seqs") is None


def test_the_frame_holds_figures_as_floats_and_text_as_text():
    frame = trial_frame([trial(max_num_seqs=4, slo_pass=True, dtype="float32"), trial(max_num_seqs="four", dtype=None)])
    assert list(frame["max_num_seqs"].isna()) == [False, True] and frame["max_num_seqs"].dtype == float
    assert frame["slo_pass"].dtype == "boolean" and list(frame["slo_pass"].isna()) == [False, True]
    assert list(frame["dtype"]) == ["float32", ""]
    assert set(frame.columns) == set(records()[0]["row"])


def test_numbers_that_no_sweep_writes_are_missing() -> None:
    numbers = [math.inf, math.nan, 2**70, True, 1.5, 7]
    assert bounded_numbers({"row": numbers}) == {"row": [None, None, None, True, 1.5, 7]}
