"""What a load keeps of each request: requests.jsonl, and bench.json as `vllm bench serve` writes it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_server import FakeServer, running
from load_helpers import load, record

from kvplan.cli import main
from kvplan.errors import KvplanError
from kvplan.load.observed.figures import MeasuredRun, client_figures, request_lines
from kvplan.load.summary import bench_lists
from kvplan.runs.answers.drift import drift_sentences
from kvplan.runs.directory import read_trials
from kvplan.runs.request_lines import RequestLine
from kvplan.runs.storage.requests import append_requests, read_requests

# vllm/benchmarks/serve.py of 0.32.0: what --save-detailed leaves in its result file beside the figures.
DETAILED_KEYS = {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "errors"}


def test_every_percentile_of_a_load_follows_from_its_requests(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with running(FakeServer(gap=0.002)) as server:
        words = ["--num-prompts", "30", "--max-concurrency", "5", "--output-len", "4..9", "--num-warmups", "3"]
        assert main(["load", server.url, *words, "--save-detailed", "--out", str(out)]) == 0
    (stored,) = read_trials(out / "trials.jsonl").records
    row = stored["row"]
    requests = read_requests(out)[row["trial_id"]]
    measured = [line for line in requests if not line.get("is_warmup")]
    assert (len(requests), len(measured), row["completed"]) == (33, 30, 30)
    for name in ("ttft", "tpot", "e2el"):
        values = [1000 * line[f"{name}_s"] for line in measured]  # type: ignore[literal-required]
        for percent in (90, 95, 99, 99.9):
            column = f"p{percent}_{name}_ms".replace(".", "_")
            assert row[column] == pytest.approx(np.percentile(values, percent), abs=0.01)  # type: ignore[literal-required]
    gaps = [gap for line in measured for gap in line["itl_s"]]
    assert row["p99_9_itl_ms"] == pytest.approx(1000 * np.percentile(gaps, 99.9), abs=0.01)
    assert all(line["itl_max_s"] == max(line["itl_s"]) for line in measured)
    assert sum(line["output_tokens"] or 0 for line in measured) == row["total_output_tokens"]
    assert sum(line["input_tokens"] for line in measured) == row["total_input_tokens"]
    bench = json.loads((out / "bench.json").read_text())
    assert bench.keys() >= DETAILED_KEYS | {"p99.9_ttft_ms", "median_itl_ms", "duration", "completed"}
    assert all(len(bench[name]) == 30 for name in DETAILED_KEYS)
    assert np.mean(bench["ttfts"]) == pytest.approx(bench["mean_ttft_ms"] / 1000, abs=1e-5)
    assert [len(gaps) + 1 for gaps in bench["itls"]] == bench["output_lens"]


def test_gaps_are_kept_only_where_they_are_asked_for(tmp_path: Path) -> None:
    with running(FakeServer(gap=0.001)) as server:
        assert (
            main(["load", server.url, "--num-prompts", "4", "--output-len", "3", "--out", str(tmp_path / "run")]) == 0
        )
    (requests,) = read_requests(tmp_path / "run").values()
    assert all("itl_s" not in line and line["itl_max_s"] for line in requests)
    assert not (tmp_path / "run" / "bench.json").exists()


def test_what_failed_is_listed_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first two of the server's requests are the probes."""
    server = FakeServer(gap=0.001, refuse=lambda number: 503 if number in (4, 7) else None)
    with running(server):
        words = ["--num-prompts", "8", "--max-concurrency", "1", "--output-len", "2"]
        code = main(["load", server.url, *words, "--out", str(tmp_path / "run")])
    assert code == 1
    (requests,) = read_requests(tmp_path / "run").values()
    failed = {line["id"]: line["error"] for line in requests if line["error"]}
    assert len(failed) == 2 and all(str(error).startswith("503") for error in failed.values())
    assert all(line["ttft_s"] is None and line["end_s"] is not None for line in requests if line["error"])


def test_cached_tokens_are_those_that_the_server_counts() -> None:
    with running(FakeServer(gap=0.001, cached_tokens=5)) as server:
        run = load(server, num_prompts=3, output_len="2", input_len="16")
    assert [line["cached_tokens"] for line in run.requests("a")] == [5, 5, 5]
    with running(FakeServer(gap=0.001, cached_tokens=5_000)) as server:
        run = load(server, num_prompts=2, output_len="2", input_len="16")
    assert [line["cached_tokens"] for line in run.requests("a")] == [None, None], "more than the prompt has"


def test_latencies_count_from_the_schedule_as_those_of_the_row_do() -> None:
    late = record(10.0, (12.0, 12.5, 13.5), started=11.0)
    run = MeasuredRun((late,), is_open=True)
    (line,) = request_lines(run, "a")
    assert (line["scheduled_s"], line["sent_s"], line["ttft_s"], line["e2el_s"]) == (0.0, 1.0, 2.0, 3.5)
    assert (line["tpot_s"], line["itl_max_s"], line["end_s"]) == (0.75, 1.0, 3.5)
    assert client_figures(run, {})["mean_ttft_ms"] == 2000
    lists = bench_lists(run)  # vLLM's clock starts at sending
    assert (lists["ttfts"], lists["itls"], lists["latencies"], lists["start_times"]) == (
        [1.0],
        [[0.5, 1.0]],
        [2.5],
        [1.0],
    )


def test_tokens_counted_at_the_end_give_no_gaps_and_uncounted_ones_no_tpot() -> None:
    at_end = record(0.0, (1.0, 2.0), counts=[], num_output_tokens=11, token_source="usage")
    (line,) = request_lines(MeasuredRun((at_end,), is_open=False), "a", with_gaps=True)
    assert (line["tpot_s"], line["itl_max_s"], line.get("itl_s")) == (pytest.approx(0.1), None, None)
    uncounted = record(0.0, (1.0, 2.0), counts=[], num_output_tokens=None, token_source=None)
    (line,) = request_lines(MeasuredRun((uncounted,), is_open=False), "a")
    assert (line["ttft_s"], line["e2el_s"], line["tpot_s"], line["output_tokens"]) == (1.0, 2.0, None, None)


def lines_of(trial_id: str, count: int, **changes: Any) -> list[RequestLine]:
    run = MeasuredRun(tuple(record(float(place), (place + 1.0,), index=place) for place in range(count)), is_open=False)
    return [line | changes for line in request_lines(run, trial_id)]  # type: ignore[misc]


def test_requests_of_a_trial_that_runs_again_replace_those_that_a_crash_left(tmp_path: Path) -> None:
    append_requests(tmp_path, lines_of("a", 3, ttft_s=9.0))
    file = tmp_path / "requests.jsonl"
    file.write_bytes(file.read_bytes()[:-20])  # the machine died here
    append_requests(tmp_path, lines_of("a", 3))
    append_requests(tmp_path, lines_of("b", 2))
    found = read_requests(tmp_path)
    assert {name: [line["ttft_s"] for line in lines] for name, lines in found.items()} == {
        "a": [1.0] * 3,
        "b": [1.0] * 2,
    }
    assert read_requests(tmp_path / "none") == {}


@pytest.mark.parametrize(
    "changes",
    [{"id": "x"}, {"trial_id": 3}, {"ttft_s": "soon"}, {"ttft_s": 1e999}, {"itl_s": [0.1, "x"]}, {"error": {}},
     {"itl_s": 3.0, "input_tokens": True}],
)  # fmt: skip
def test_lines_of_other_hands_are_left_out(tmp_path: Path, changes: dict[str, Any]) -> None:
    good, bad = lines_of("a", 2)
    text = "\n".join([json.dumps(good), json.dumps(bad | changes), "[1]", '{"trial_id": "a"}', "{", "\x00"])
    (tmp_path / "requests.jsonl").write_text(text)
    assert read_requests(tmp_path) == {"a": [good]}


def test_a_link_in_the_place_of_the_file_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KvplanError, match="record of requests"):
        append_requests(tmp_path, lines_of("a", 1))
    assert not (tmp_path / "elsewhere").exists()


def timed_lines(ttfts: list[float], every: float = 0.5) -> list[RequestLine]:
    """Requests sent at equal gaps, with these times to the first token."""
    records = [
        record(place * every, (place * every + ttft, place * every + ttft + 0.1), index=place)
        for place, ttft in enumerate(ttfts)
    ]
    return request_lines(MeasuredRun(tuple(records), is_open=True), "a")


def noisy(median: float, count: int, seed: int = 1) -> list[float]:
    return [float(value) for value in median * np.random.default_rng(seed).lognormal(0, 0.3, count)]


def test_warm_up_and_drift_are_said_where_chance_is_no_explanation() -> None:
    (warm,) = drift_sentences(timed_lines(noisy(0.9, 10) + noisy(0.1, 90)))
    assert re.match(r"Warm-up: the median TTFT of the first 10 requests was [\d,]+ ms, of the others \d+ ms", warm)
    growing = [value * (1 + place / 40) for place, value in enumerate(noisy(0.1, 120))]
    assert [line.partition(":")[0] for line in drift_sentences(timed_lines(growing))] == ["Drift"]
    assert "TTFT went from" in drift_sentences(timed_lines(growing))[0]


@pytest.mark.parametrize("seed", range(20))
def test_a_steady_run_is_said_nothing_of(seed: int) -> None:
    assert drift_sentences(timed_lines(noisy(0.1, 100, seed))) == []


def test_requests_that_are_all_sent_at_once_have_no_beginning() -> None:
    """Their queue is no drift of the server; nor can ten requests show one."""
    queue = [0.1 * place for place in range(1, 61)]
    assert drift_sentences(timed_lines(queue, every=0.0)) == []
    assert drift_sentences(timed_lines(noisy(0.9, 5) + noisy(0.1, 5))) == []


def test_the_page_of_a_load_shows_its_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    server = FakeServer(gap=0.001, refuse=lambda number: 503 if number == 9 else None)
    with running(server):
        words = ["--num-prompts", "12", "--max-concurrency", "3", "--output-len", "3", "--max-failed", "1"]
        assert main(["load", server.url, *words, "--out", str(out)]) == 0
    assert (out / "requests.png").exists()
    page = (out / "report.html").read_text()
    assert 'href="#requests"' in page
    assert re.search(
        r"Half of the requests had their first token within [\d.]+ ms, 99 % within .*; 1 request failed", page
    )
