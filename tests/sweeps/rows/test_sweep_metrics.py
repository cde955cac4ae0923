"""The definitions of the figures, by traces worked out by hand, and rows: columns, statuses, cells that cannot be."""

from __future__ import annotations

import csv
import io
import itertools
import json
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
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
from kvplan.sweeps.worker.metrics import (
    RequestTrace,
    StepSample,
    downsampled_series,
    goodput_figures,
    occupancy_figures,
    peak_concurrency,
    serving_figures,
    weighted_percentile,
)
from kvplan_engine.device.allocation import allocating
from kvplan_engine.errors import ContextTooLong, OutOfDeviceMemory


def trace(name: str, prompt: int, arrival: float, *times: float, finished: bool = True) -> RequestTrace:
    return RequestTrace(name, prompt, arrival, list(times), finished)


# Three requests; the third has one token only (no TPOT), the fourth failed.
TRACES = [
    trace("a", 10, 0.0, 0.5, 0.7, 1.1),
    trace("b", 20, 0.25, 1.25, 1.5),
    trace("c", 5, 1.0, 1.5),
    trace("d", 7, 1.0, finished=False),
]


def test_figures_of_a_trace_worked_out_by_hand() -> None:
    figures = serving_figures(TRACES, 2.0)
    assert figures["completed"] == 3
    assert figures["failed"] == 1
    assert figures["total_input_tokens"] == 35
    assert figures["total_output_tokens"] == 6
    assert figures["request_throughput"] == 1.5
    assert figures["output_throughput"] == 3.0
    assert figures["total_token_throughput"] == 20.5
    # TTFT: 0.5, 1.0, 0.5 s
    assert figures["mean_ttft_ms"] == pytest.approx(2000 / 3)
    assert figures["median_ttft_ms"] == pytest.approx(500)
    assert figures["p90_ttft_ms"] == pytest.approx(900)  # 500 + 0.8 * 500 between the second and the third
    assert figures["p99_ttft_ms"] == pytest.approx(990)
    # TPOT: (1.1 - 0.5) / 2 = 0.3 and (1.5 - 1.25) / 1 = 0.25 s; a single token has none
    assert figures["mean_tpot_ms"] == pytest.approx(275)
    assert figures["std_tpot_ms"] == pytest.approx(25)
    # ITL: 0.2, 0.4, 0.25 s, pooled
    assert figures["mean_itl_ms"] == pytest.approx(850 / 3)
    assert figures["median_itl_ms"] == pytest.approx(250)
    # latency: 1.1, 1.25, 0.5 s
    assert figures["median_e2el_ms"] == pytest.approx(1100)
    assert figures["max_concurrent_requests"] == 3


def test_percentiles_and_spread_are_numpys() -> None:
    rng = np.random.default_rng(3)
    traces = [trace(str(index), 1, 0.0, *np.cumsum(rng.random(5))) for index in range(40)]
    figures = serving_figures(traces, 10.0)
    ttfts = np.array([item.token_times[0] for item in traces]) * 1000
    assert figures["p99_ttft_ms"] == pytest.approx(np.percentile(ttfts, 99), rel=1e-12)
    assert figures["std_ttft_ms"] == pytest.approx(np.std(ttfts), rel=1e-12)


def test_goodput_counts_requests_within_every_objective() -> None:
    # TTFT 500, 1000, 500 ms; TPOT 300, 250 ms and none; the fourth request failed
    figures = goodput_figures(TRACES, 2.0, {"ttft": 0.6})
    assert (figures["request_goodput"], figures["goodput_pct"], figures["slo_pass"]) == (1.0, 50.0, False)
    figures = goodput_figures(TRACES[:3], 2.0, {"ttft": 1.001, "tpot": 0.28})
    assert (figures["request_goodput"], figures["slo_pass"]) == (1.0, False)
    figures = goodput_figures(TRACES[:3], 2.0, {"ttft": 1.001, "tpot": 0.301, "e2el": 1.251})
    assert (figures["goodput_pct"], figures["slo_pass"]) == (100.0, True)
    assert goodput_figures(TRACES, 2.0, {}) == {}


def test_nothing_completed_has_no_latency() -> None:
    figures = serving_figures([trace("a", 3, 0.0, finished=False)], 1.0)
    assert figures["completed"] == 0
    assert figures["mean_ttft_ms"] is None


def test_a_departure_comes_before_an_arrival_at_the_same_instant() -> None:
    assert peak_concurrency([trace("a", 1, 0.0, 1.0), trace("b", 1, 1.0, 2.0)]) == 1
    assert peak_concurrency([trace("a", 1, 0.0, 1.0), trace("b", 1, 0.9, 2.0)]) == 2


def sample(seconds: float, step: float, running: int, blocks: int, tokens: int, waiting: int = 0) -> StepSample:
    return StepSample(seconds, step, running, waiting, blocks, tokens, tokens, running)


def test_occupancy_weighs_steps_by_their_time() -> None:
    # 1 s with 4 of 10 blocks holding 48 tokens, 3 s with 2 blocks holding 20; blocks of 16 slots
    samples = [sample(1.0, 1.0, 2, 4, 48, waiting=5), sample(4.0, 3.0, 1, 2, 20)]
    figures = occupancy_figures(samples, num_blocks=10, block_size=16, block_bytes=1600, max_model_len=100)
    assert figures["kv_usage_mean"] == pytest.approx((0.4 + 3 * 0.2) / 4)
    assert figures["kv_usage_max"] == pytest.approx(0.4)
    assert figures["kv_usage_p95"] == pytest.approx(0.4)
    wasted = (64 - 48) * 1 + (32 - 20) * 3
    assert figures["frag_pct"] == pytest.approx(100 * wasted / (64 + 3 * 32))
    assert figures["internal_frag_bytes_mean"] == pytest.approx(wasted / 4 * 100)
    # contiguous: 2 sequences reserve 200 slots for 1 s, 1 sequence 100 slots for 3 s
    assert figures["contiguous_utilization_pct"] == pytest.approx(100 * (48 + 3 * 20) / (200 + 300))
    assert figures["max_running"] == 2
    assert figures["max_waiting"] == 5


def test_weighted_percentile() -> None:
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([1.0, 98.0, 1.0])
    assert weighted_percentile(values, weights, 95) == 1.0
    assert weighted_percentile(values, weights, 98.5) == 2.0
    assert weighted_percentile(values, weights, 100) == 3.0


def test_series_is_short_and_keeps_peaks() -> None:
    samples = [sample((index + 1) * 0.1, 0.1, 1, 7 if index == 555 else 1, 16) for index in range(1000)]
    series = downsampled_series(samples, num_blocks=10)
    assert {len(values) for values in series.values()} == {len(series["seconds"])}
    assert len(series["seconds"]) <= 400
    assert max(series["kv_usage"]) == pytest.approx(0.7)
    assert series["seconds"][-1] == pytest.approx(100.0)
    assert series["output_tokens_per_second"][0] == pytest.approx(10.0)


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
