"""Rows of a sweep: which columns there are, statuses, vLLM's definitions, and cells that cannot be."""

from __future__ import annotations

import csv
import io
import itertools
import json
from pathlib import Path
from typing import Any, Literal, TypedDict

import pytest
from sample_rows import sample_records, write_sample_directory

from kvplan.errors import KvplanError
from kvplan.runs.answers.beside import beside_phrases, predicted_of, ratio_sentences, ratios
from kvplan.runs.columns import COLUMN_NAMES, FIRST_COLUMNS, table_columns
from kvplan.runs.directory import TRIAL_SCHEMA, read_trials
from kvplan.runs.rows import as_written_now, empty_row, settings_of
from kvplan.runs.shape import ShapeError, check_shape
from kvplan.runs.statuses import OUT_OF_MEMORY_STATUSES
from kvplan.runs.storage.reader import load_run
from kvplan.runs.storage.store import csv_text
from kvplan.runs.trials import Trial, TrialSettings
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.worker.metrics import RequestTrace, goodput_figures, serving_figures
from kvplan_engine.device.allocation import allocating
from kvplan_engine.errors import ContextTooLong, OutOfDeviceMemory


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


@pytest.mark.parametrize("phase", ["weights", "kv_init", "kv_host", "graph_capture", "runtime"])
def test_the_engines_phases_are_known_statuses(phase: str) -> None:
    with pytest.raises(OutOfDeviceMemory) as raised, allocating(phase, 1 << 20):
        raise MemoryError
    assert raised.value.phase == phase
    assert raised.value.status in OUT_OF_MEMORY_STATUSES


def test_a_rejected_context_is_a_known_status() -> None:
    assert ContextTooLong("too long", requested_tokens=2, largest_tokens=1).status in OUT_OF_MEMORY_STATUSES


RECORD: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "token_times_gpt2.json").read_text())


def recorded_traces() -> list[RequestTrace]:
    return [
        RequestTrace(
            f"request-{number}", entry["num_prompt_tokens"], entry["arrival_seconds"], entry["token_times"], True
        )
        for number, entry in enumerate(RECORD["requests"])
    ]


@pytest.mark.parametrize("name", sorted(RECORD["vllm_figures"]))
def test_figure_is_vllms(name: str) -> None:
    assert serving_figures(recorded_traces(), RECORD["duration"])[name] == RECORD["vllm_figures"][name]


def test_goodput_is_vllms() -> None:
    """A request is good within every bound, bounds included; one with a single token has a TPOT of 0."""
    figures = goodput_figures(
        recorded_traces(),
        RECORD["duration"],
        {name: bound / 1000 for name, bound in RECORD["goodput_bounds_ms"].items()},
    )
    assert figures["request_goodput"] == RECORD["request_goodput"]
    assert figures["goodput_pct"] == 100 * RECORD["num_good"] / len(RECORD["requests"])
    assert 0 < RECORD["num_good"] < len(RECORD["requests"])


def test_the_record_has_what_the_definitions_differ_in() -> None:
    """Requests with one token have no TPOT but a TTFT, and several tokens of one request never share an instant."""
    lengths = [len(entry["token_times"]) for entry in RECORD["requests"]]
    assert 1 in lengths and max(lengths) > 10
    times = [entry["token_times"] for entry in RECORD["requests"]]
    assert all(a < b for of_one in times for a, b in itertools.pairwise(of_one))


class Inner(TypedDict, total=False):
    number: int
    words: list[str]


class Outer(TypedDict, total=False):
    inner: Inner | None
    share: float
    word: Literal["a", "b"]
    any: dict[str, Any]


@pytest.mark.parametrize(
    "value",
    [{}, {"inner": None}, {"inner": {"number": 3.0, "words": []}, "share": 1, "word": "a"}, {"later": object()},
     {"any": {"x": [None, {}]}}],
)  # fmt: skip
def test_what_has_the_shape_passes(value: object) -> None:
    check_shape(value, Outer, "it")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ([], "it is \\[\\]"),
        ({"inner": []}, "it.inner is \\[\\]"),
        ({"inner": {"number": "3"}}, "it.inner.number is '3'"),
        ({"inner": {"number": True}}, "it.inner.number is True"),
        ({"inner": {"number": 3.5}}, "it.inner.number is 3.5"),
        ({"inner": {"number": 10**400}}, "it.inner.number is a number too large"),
        ({"inner": {"words": ["a", 1]}}, "it.inner.words\\[1\\] is 1"),
        ({"share": float("nan")}, "it.share is nan"),
        ({"share": float("inf")}, "it.share is inf"),
        ({"word": "c"}, "it.word is 'c'"),
        ({"later": [float("nan")]}, "it.later\\[0\\] is nan"),
        ({"any": {"x": {"y": float("inf")}}}, "it.any.x.y is inf"),
    ],
)
def test_what_has_not_is_named(value: object, sentence: str) -> None:
    with pytest.raises(ShapeError, match=sentence):
        check_shape(value, Outer, "it")


def _stored(path: Path, row: dict[str, Any]) -> int:
    path.write_text(json.dumps({"schema": TRIAL_SCHEMA, "row": row, "series": None}) + "\n")
    return len(read_trials(path).records)


def test_a_record_with_a_cell_that_cannot_be_is_damaged(tmp_path: Path) -> None:
    assert _stored(tmp_path / "t", {"trial_id": "a", "num_prompts": 4, "burstiness": None, "of_later": []}) == 1
    assert _stored(tmp_path / "t", {"trial_id": "a", "num_prompts": 10**400}) == 0
    assert _stored(tmp_path / "t", {"trial_id": ["a"]}) == 0
    assert _stored(tmp_path / "t", {"trial_id": "a", "of_later": float("inf")}) == 0


@pytest.mark.parametrize(
    ("row", "engine"),
    [({}, "kvplan"), ({"engine": "vllm"}, "vllm"), ({"url": "http://x"}, None),
     ({"url": "http://x", "engine": "sglang"}, "sglang")],
)  # fmt: skip
def test_rows_of_kvplans_own_engine_name_it_in_old_directories_too(
    row: dict[str, Any], engine: str | None, tmp_path: Path
) -> None:
    assert _stored(tmp_path / "t", {"trial_id": "a"} | row) == 1
    assert read_trials(tmp_path / "t").records[0]["row"]["engine"] == engine


def test_settings_that_a_server_does_not_tell_are_not_known() -> None:
    found = settings_of(empty_row() | {"max_model_len": 512, "block_size": 16})
    assert not found.is_known
    assert found.known_values() == {"max_model_len": 512, "block_size": 16, "dtype": "auto", "kv_cache_dtype": "auto"}
    assert TrialSettings.of_known(found.known_values()) == found


@pytest.mark.parametrize(
    "record",
    [{}, {"number": 1, "settings": {}, "run_number": 1, "planes": []},
     {"number": 1, "settings": {"x": 1}, "run_number": 1, "planes": []}],
)  # fmt: skip
def test_a_trial_that_is_none(record: Any) -> None:
    with pytest.raises(KvplanError, match=r"lacks|has"):
        Trial.from_json(record)


@pytest.mark.parametrize(
    "changes",
    [{"num_prompts": "4"}, {"axes": [1]}, {"engine_args": "x"}, {"slo_ms": {"ttft": "1"}}, {"request_rate": []}],
)  # fmt: skip
def test_options_that_no_sweep_wrote(changes: dict[str, Any]) -> None:
    with pytest.raises(KvplanError, match="options cannot be read"):
        SweepOptions.from_json(SweepOptions(model="gpt2").as_json() | changes)
