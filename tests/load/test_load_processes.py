"""A client of several processes: together they do what one client does, and their records are all there."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from fake_server import FakeServer, running
from load_helpers import load

from kvplan.cli import main
from kvplan.errors import KvplanError
from kvplan.load.observed.figures import client_figures
from kvplan.load.observed.health import ProcessSample, client_health
from kvplan.load.options import LoadOptions
from kvplan.load.processes import team
from kvplan.load.processes.team import ClientProcess, send_together
from kvplan.load.sending import Sending, SentSoFar
from kvplan.load.session import find_target

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
