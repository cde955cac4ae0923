"""What a load keeps of each request, and a client of several processes: their records are all there."""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_server import FakeServer, running
from load_helpers import load, record

from kvplan.cli import main
from kvplan.errors import KvplanError
from kvplan.load.observed.figures import MeasuredRun, client_figures, request_lines
from kvplan.load.observed.health import ProcessSample, client_health
from kvplan.load.options import LoadOptions
from kvplan.load.processes import team
from kvplan.load.processes.team import ClientProcess, send_together
from kvplan.load.sending import Sending, SentSoFar
from kvplan.load.session import find_target
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


URL = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    "given",
    [
        {"num_prompts": 20},
        {"num_prompts": 20, "request_rate": "5", "burstiness": 0.5, "num_warmups": 3},
        {"num_prompts": 21, "users": 5, "think_time": 1.0, "input_len": "8..64"},
        {"num_prompts": 20, "max_concurrency": 7, "prefix_len": "16", "num_prefixes": 3},
    ],
)
def test_shares_are_the_whole_load_dealt_out(given: dict[str, object]) -> None:
    plan = LoadOptions(url=URL, **given).traffic()  # type: ignore[arg-type]
    shares = plan.shares(3)
    parts = [list(share.requests()) for share in shares]
    assert sorted(itertools.chain(*parts), key=lambda request: request.index) == list(plan.requests())
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert sorted(itertools.chain(*(share.own_users for share in shares))) == list(range(plan.users or 0))
    if plan.max_in_flight is not None:
        assert sum(share.own_in_flight or 0 for share in shares) == plan.max_in_flight


def test_a_load_without_an_end_is_dealt_out_too() -> None:
    plan = LoadOptions(url=URL, duration=60.0, users=4).traffic()
    firsts = [itertools.islice(share.requests(), 4000) for share in plan.shares(2)]
    indices = sorted(request.index for request in itertools.chain(*firsts))
    assert indices == list(range(8000)), "beyond the 4,096 that are drawn at once"


def test_there_are_no_more_clients_than_users_or_seats() -> None:
    assert len(LoadOptions(url=URL, users=2).traffic().shares(4)) == 2
    assert len(LoadOptions(url=URL, max_concurrency=3).traffic().shares(4)) == 3
    assert len(LoadOptions(url=URL, request_rate="1").traffic().shares(4)) == 4


def test_three_processes_send_what_one_client_sends() -> None:
    given = {"num_prompts": 24, "request_rate": "200", "num_warmups": 2, "output_len": "3", "input_len": "8..32"}
    with running(FakeServer(ttft=0.0, gap=0.0)) as server:
        options = LoadOptions(url=server.url, **given)  # type: ignore[arg-type]
        alone = load(server, **given)
        prompts = Counter(request.body["prompt"] for request in server.served)
        server.served.clear()
        plan = options.traffic()
        seen: list[SentSoFar] = []
        sent = send_together(Sending(find_target(options), plan, 60.0, "test"), 3, seen.append)
        together = Counter(request.body["prompt"] for request in server.served)
    together.subtract(prompts)
    assert sum(abs(count) for count in together.values()) == 2, "the two probes of the second run, and nothing else"
    assert len(prompts) == 26, "each text once"
    assert [record.index for record in sent.records] == list(range(26))
    assert [record.is_warmup for record in sent.records] == [True, True] + [False] * 24
    assert len(sent.samples) == 3 and not sent.interrupted
    # one schedule, but for rounding: all processes count from one start
    times = [request.arrival_seconds for request in plan.requests()]
    start = sent.records[0].scheduled - times[0]
    assert [record.scheduled - start for record in sent.records] == pytest.approx(times, abs=1e-9)
    assert sum(record.num_output_tokens or 0 for record in sent.records) == 26 * 3
    assert all(part.num_sent <= 26 for part in seen)
    assert {len(record.times) for record in alone.measured.records} == {len(record.times) for record in sent.records}


def test_a_limit_of_requests_in_flight_holds_for_all_processes_together() -> None:
    with running(FakeServer(ttft=0.01, gap=0.0)) as server:
        run = load(server, num_prompts=30, max_concurrency=5, output_len="2", num_clients=2)
        assert server.most_open <= 5
    row = run.row({})
    assert (row["completed"], row["total_output_tokens"], run.health.num_processes) == (30, 60, 2)
    # nothing is averaged over processes: percentiles come from the records themselves
    assert row["p99_ttft_ms"] == client_figures(run.measured, {})["p99_ttft_ms"]


def test_the_command_reports_one_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    with running(FakeServer(ttft=0.0, gap=0.0)) as server:
        words = ["--num-prompts", "8", "--max-concurrency", "4", "--output-len", "3", "--num-clients", "2"]
        code = main(["load", server.url, *words, "--out", str(out)])
    printed = capsys.readouterr().out
    summary = json.loads((out / "summary.json").read_text())
    assert (code, summary["completed"], summary["total_output_tokens"]) == (0, 8, 24)
    assert "8 of 8 requests served" in printed and "Client: 2 processes, " in printed
    assert json.loads((out / "manifest.json").read_text())["options"]["num_clients"] == 2


def test_a_process_that_is_stopped_gives_what_it_has() -> None:
    with running(FakeServer(ttft=0.0, gap=0.0)) as server:
        options = LoadOptions(url=server.url, duration=600.0, users=2, output_len="2")
        sending = Sending(find_target(options), options.traffic(), 60.0)
        tally = team._SentTally(1, lambda seen: None)
        with ClientProcess(sending, tally, 0) as process:
            process.expect_ready()
            process.begin(time.perf_counter())
            while len(server.served) < 20 and process.is_running:
                time.sleep(0.01)
            process.stop()
            sent = process.result()
    assert sent.interrupted
    assert sum(record.is_served for record in sent.records) >= 10


def test_a_process_that_ends_early_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "_COMMAND", (sys.executable, "-c", "raise SystemExit(3)"))
    with running(FakeServer()) as server:
        options = LoadOptions(url=server.url, num_prompts=2)
        sending = Sending(find_target(options), options.traffic(), 60.0)
        with pytest.raises(KvplanError, match="ended with exit code 3"):
            send_together(sending, 2, lambda seen: None)


_ENDS_IN_A_MESSAGE = """
import pickle, sys
from kvplan.load.processes.messages import READY, write_message
write_message(sys.stdout.buffer, READY)
sys.stdout.buffer.write(pickle.dumps(list(range(1000)))[:100])
sys.stdout.flush()
raise SystemExit(5)
"""


def test_a_process_that_ends_in_the_middle_of_a_message_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "_COMMAND", (sys.executable, "-c", _ENDS_IN_A_MESSAGE))
    with running(FakeServer()) as server:
        options = LoadOptions(url=server.url, num_prompts=2)
        sending = Sending(find_target(options), options.traffic(), 60.0)
        with pytest.raises(KvplanError, match="ended with exit code 5"):
            send_together(sending, 2, lambda seen: None)


def test_what_a_single_client_cannot_do_several_cannot_either(tmp_path: Path) -> None:
    lines = tmp_path / "trace.jsonl"
    lines.write_text('{"input_len": 8, "output_len": 2}\n')
    with running(FakeServer()) as server:
        options = LoadOptions(url=server.url, workload=str(lines), max_concurrency=2)
        sending = Sending(find_target(options), options.traffic(), 60.0)
        lines.unlink()
        with pytest.raises(KvplanError, match="cannot be read"):
            send_together(sending, 2, lambda seen: None)


def test_a_client_is_bound_by_its_busiest_process() -> None:
    idle, busy = ProcessSample((0.001,) * 99, 0.1, 1.0), ProcessSample((0.002,), 0.97, 1.0)
    health = client_health([], [idle, busy])
    assert (health.cpu_share, health.num_processes, health.cpu_seconds) == (0.97, 2, pytest.approx(1.07))
    assert health.is_bound and "97 % of a core" in health.reasons[0]
    assert client_health([], [idle, idle]).reasons == ()
