"""When requests are due, who sends them, and what they ask."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from fake_server import FakeServer, running
from load_helpers import load

from kvplan.errors import UsageError
from kvplan.load.options import LoadOptions
from kvplan.load.traffic.arrivals import CONSTANT, Rate, arrival_times
from kvplan.load.traffic.prompts import WORDS, PromptBook, PromptScale
from kvplan.runs.trials import Load
from kvplan.workload.lengths import Lengths
from kvplan.workload.requests import WorkloadSpec, generate_requests


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def test_equal_gaps() -> None:
    assert arrival_times(Rate(4, 4), CONSTANT, 5, seed=0) == [0.25, 0.5, 0.75, 1.0, 1.25]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("burstiness", [0.25, 1.0])
def test_requests_come_as_in_a_sweep_the_last_when_the_rate_says(seed: int, burstiness: float) -> None:
    times = arrival_times(Rate(2, 2), burstiness, 20, seed)
    assert times[-1] == pytest.approx(10)
    swept = WorkloadSpec(20, Lengths(1, 1), Lengths(1, 1), request_rate=2.0, burstiness=burstiness, seed=seed)
    assert times == pytest.approx([request.arrival_seconds for request in generate_requests(swept)])


def test_a_burstiness_that_leaves_no_time_between_requests_is_refused() -> None:
    with pytest.raises(UsageError, match="A burstiness of 1e-08 is too low"):
        arrival_times(Rate(2, 2), 1e-8, 20, seed=0)


def test_a_ramp_down_to_almost_nothing_ends() -> None:
    assert arrival_times(Rate(1000, 1e-6), CONSTANT, 50, seed=0)[-1] == pytest.approx(0.1, rel=1e-3)


def test_a_ramp_goes_from_one_rate_to_the_other() -> None:
    times = arrival_times(Rate(1, 9), CONSTANT, 500, seed=0)
    between = gaps(times)
    assert times[-1] == pytest.approx(100, rel=0.01)  # 500 at (1 + 9) / 2 per second
    assert 1 / statistics.mean(between[:5]) == pytest.approx(1.2, rel=0.2)
    assert 1 / statistics.mean(between[-20:]) == pytest.approx(9, rel=0.02)


@pytest.mark.parametrize(("text", "last"), [("1..8", 8.0), ("8..1", 1.0), ("4", 4.0)])
def test_a_run_by_the_clock_has_the_line_of_its_rate(text: str, last: float) -> None:
    """It ends with the second rate, and has as many requests as the mean rate makes."""
    options = LoadOptions(url="x", request_rate=text, duration=60.0, burstiness=CONSTANT)
    plan = options.traffic()
    times = [spec.arrival_seconds for spec in plan.requests() if spec.arrival_seconds <= 60]
    assert len(times) == pytest.approx(60 * plan.rate.mean, abs=1)
    assert 1 / gaps(times)[-1] == pytest.approx(last, rel=0.1)


@pytest.mark.parametrize("rate", ["4", "1..7"])
def test_a_file_repeats_until_the_end_of_a_run_by_the_clock(rate: str, tmp_path: Path) -> None:
    """But for a trace at its own pattern: that ends with its last request."""
    lengths, trace = tmp_path / "lengths.jsonl", tmp_path / "trace.csv"
    lengths.write_text("".join(f'{{"input_len": {length}, "output_len": 2}}\n' for length in (20, 30, 40)))
    trace.write_text("arrival_seconds,input_len,output_len\n0,20,2\n1,30,3\n4,40,4\n")
    given = LoadOptions(url="x", workload=str(lengths), request_rate=rate, duration=60.0, burstiness=CONSTANT)
    sent = [spec for spec in given.traffic().requests() if spec.arrival_seconds <= 60]
    assert len(sent) == pytest.approx(240, abs=1)
    assert [spec.index for spec in sent] == list(range(len(sent)))
    assert {spec.num_prompt_tokens for spec in sent} == {20, 30, 40}
    traced = list(replace(given, workload=str(trace)).traffic().requests())
    assert (len(traced) > 240) is (rate == "1..7")
    with pytest.raises(UsageError, match=r"--duration needs .* and .* does not say it"):
        LoadOptions(url="x", workload=str(lengths), duration=60.0).traffic()


@pytest.mark.parametrize("text", ["0", "-1", "x", "1..2..3", "1..inf", "nan"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Rate.parse(text)


def test_prompts_have_the_tokens_that_were_asked_for() -> None:
    scale = PromptScale.between((16, 16 * 2 + 7), (80, 80 * 2 + 7))
    assert scale == PromptScale(2.0, 7.0)
    for asked in (9, 51, 1007, 200_007):
        assert 7 + 2 * len(PromptBook(0, scale).prompt(0, asked).split()) == asked


def test_no_prompt_begins_like_another_unless_it_shares_a_prefix() -> None:
    book = PromptBook(seed=0, run="a")
    starts = {book.prompt(index, 64).split()[0] for index in range(len(WORDS))}
    assert len(starts) == len(WORDS)
    other_run = PromptBook(seed=0, run="b")
    assert book.prompt(5, 64).split()[4:] != other_run.prompt(5, 64).split()[4:]
    begun, begun_later = (
        {tuple(each.prompt(index, 64).split()[:4]) for index in range(500)} for each in (book, other_run)
    )
    assert not begun & begun_later, "a word may fill a block of its own"
    assert book.prompt(5, 64) == PromptBook(seed=0, run="a").prompt(5, 64)
    first, second = (book.prompt(index, 96, prefix_index=1, num_prefix_tokens=32).split() for index in (0, 1))
    assert first[:32] == second[:32] and first[32] != second[32]
    assert book.prompt(0, 96, prefix_index=2, num_prefix_tokens=32).split()[:32] != first[:32]


def test_the_same_prompt_for_all() -> None:
    book = PromptBook(seed=0, same_prompt=True)
    assert book.prompt(3, 20) == book.prompt(4, 20)


def test_the_server_gets_prompts_as_long_as_asked_by_its_own_count() -> None:
    with running(FakeServer(tokens_per_word=3, overhead_tokens=11)) as server:
        run = load(server, num_prompts=3, max_concurrency=3, input_len="311", output_len="2")
    assert [record.num_prompt_tokens for record in run.measured.records] == [311] * 3
    assert run.row({})["total_input_tokens"] == 933


def test_an_open_loop_sends_at_its_times_however_slow_the_server() -> None:
    with running(FakeServer(ttft=0.3, gap=0.0)) as server:
        run = load(server, num_prompts=20, request_rate="100", burstiness=CONSTANT, output_len="2")
    assert run.measured.is_open
    assert server.most_open > 10
    due = [round(record.scheduled - run.measured.start, 6) for record in run.measured.records]
    assert due == [round(0.01 * place, 6) for place in range(20)]
    assert all(record.started >= record.scheduled for record in run.measured.records)


def test_latency_of_an_open_loop_counts_from_the_schedule_where_a_limit_holds_requests_back() -> None:
    with running(FakeServer(ttft=0.05, gap=0.0)) as server:
        run = load(server, num_prompts=6, request_rate="1000", burstiness=CONSTANT, max_concurrency=1, output_len="2")
    row, records = run.row({}), run.measured.records
    assert server.most_open == 1
    # each waits for those before it
    assert all(later.permitted >= earlier.times[-1] for earlier, later in itertools.pairwise(records))
    held = [record.started - record.scheduled for record in records]
    assert row["mean_ttft_ms"] == pytest.approx(row["mean_sent_ttft_ms"] + 1000 * statistics.mean(held))
    assert held[-1] > 0.2, "held back by the limit"
    # which is not the client's lateness: that depends on who else uses the machine, so only the least one is bounded
    assert min(record.dispatch_delay for record in records[1:]) < 0.02


def test_users_have_one_request_each_and_think_between() -> None:
    with running(FakeServer(ttft=0.01, gap=0.0)) as server:
        run = load(server, num_prompts=40, users=4, think_time=0.02, output_len="2")
    row = run.row({})
    assert server.most_open <= 4
    assert row["completed"] == 40
    # 10 rounds of about 10 ms answer and 20 ms thought
    assert row["duration"] > 0.2
    assert not run.measured.is_open


def test_a_closed_loop_keeps_as_many_in_flight_as_it_may() -> None:
    with running(FakeServer(ttft=0.1, gap=0.001)) as server:
        run = load(server, num_prompts=20, max_concurrency=5, output_len="4")
    assert server.most_open == 5
    assert run.row({})["max_concurrent_requests"] == 5


def test_a_run_by_the_clock_ends_with_it_and_repeats_no_prompt() -> None:
    with running(FakeServer(ttft=0.005, gap=0.0)) as server:
        run = load(server, duration=0.4, users=3, output_len="2")
        prompts = [request.body["prompt"] for request in server.served]
    assert 3 <= len(prompts) == len(set(prompts))
    assert all(record.scheduled - run.measured.start < 0.4 for record in run.measured.records)


def test_a_run_by_the_clock_at_a_rate_sends_as_many_as_come() -> None:
    with running(FakeServer(ttft=0.005, gap=0.0)) as server:
        run = load(server, duration=0.5, request_rate="40", burstiness=CONSTANT, output_len="2")
    assert run.row({})["completed"] == 20


def test_a_trace_comes_at_its_own_times(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_seconds,input_len,output_len\n10.0,20,2\n10.1,30,3\n10.3,40,4\n")
    with running(FakeServer(ttft=0.005, gap=0.001)) as server:
        run = load(server, workload=str(trace))
    assert [round(gap, 6) for gap in gaps([record.scheduled for record in run.measured.records])] == [0.1, 0.2]
    assert [request.body["max_tokens"] for request in server.served] == [2, 3, 4]
    assert run.measured.is_open


def test_a_trace_is_rescaled_to_a_rate(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_seconds,input_len,output_len\n0,20,2\n1,30,3\n4,40,4\n")
    plan = LoadOptions(url="x", workload=str(trace), request_rate="1.5").traffic()
    assert [round(spec.arrival_seconds, 6) for spec in plan.requests()] == [0, 0.5, 2]
    assert plan.is_open


def test_a_file_without_times_is_a_closed_loop_with_a_limit(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.jsonl"
    lengths.write_text('{"input_len": 20, "output_len": 2}\n' * 6)
    with running(FakeServer(ttft=0.03, gap=0.001)) as server:
        run = load(server, workload=str(lengths), max_concurrency=1)
    assert not run.measured.is_open
    row = run.row({})
    assert row["mean_ttft_ms"] == pytest.approx(row["mean_sent_ttft_ms"]), "a free seat is no lateness"


def test_warm_up_requests_are_not_measured_but_what_they_still_take_is() -> None:
    with running(FakeServer(ttft=0.02, gap=0.004)) as server:
        run = load(server, num_prompts=8, num_warmups=4, max_concurrency=4, output_len="20")
    row = run.row({})
    assert len(server.served) == 12
    assert (row["completed"], row["total_output_tokens"]) == (8, 160)
    # the first measured requests start when warm-ups end, so nothing of these is left in the measured part
    assert row["output_throughput"] >= 160 / row["duration"]


def test_runs_of_a_search_have_the_lengths_of_one_another() -> None:
    options = LoadOptions(url="x", search="users", slo_seconds={"ttft": 1.0}, input_len="10..90", num_prompts=20)
    few = list(options.traffic(Load(max_concurrency=2)).requests())
    many = list(options.traffic(Load(max_concurrency=9)).requests())
    assert [spec.num_prompt_tokens for spec in few] == [spec.num_prompt_tokens for spec in many]
    assert options.traffic(Load(max_concurrency=9)).users == 9


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, "server"),
        ({"users": 2, "request_rate": "3"}, "--request-rate"),
        ({"users": 2, "max_concurrency": 3}, "--max-concurrency"),
        ({"think_time": 1.0}, "--users"),
        ({"burstiness": 0.5}, "--request-rate"),
        ({"duration": 3.0}, "--duration"),
        ({"duration": 3.0, "users": 1, "num_prompts": 4}, "--num-prompts"),
        ({"search": "users"}, "--slo"),
        ({"search": "speed", "slo_seconds": {"ttft": 1.0}}, "--search"),
        ({"search": "users", "users": 2, "slo_seconds": {"ttft": 1.0}}, "--users"),
        ({"search": "users", "request_rate": "2", "slo_seconds": {"ttft": 1.0}}, "--search users"),
        ({"num_prefixes": 2}, "--prefix-len"),
        ({"num_prompts": 0}, "--num-prompts"),
        ({"users": 10**9}, "--users must be at most 10,000,000"),
        ({"search": "users=1000000000000", "slo_seconds": {"ttft": 1.0}}, "--search"),
        ({"search": "request_rate=1,1e15", "duration": 9.0, "slo_seconds": {"ttft": 1.0}}, "--search"),
        ({"endpoint": "embeddings"}, "--endpoint"),
        ({"workload": "f", "input_len": "3"}, "--input-len"),
    ],
)
def test_options_that_contradict_each_other_are_refused(given: dict[str, object], word: str) -> None:
    with pytest.raises(UsageError) as caught:
        LoadOptions(**({"url": "localhost:1"} if given else {}), **given)  # type: ignore[arg-type]
    assert word in caught.value.message
    assert caught.value.hint


def test_the_burstiness_of_equal_gaps_is_written_as_a_word() -> None:
    options = LoadOptions(url="x", request_rate="2", burstiness=math.inf)
    assert options.as_json()["burstiness"] == "inf"
    assert "at equal gaps" in options.traffic().as_text()
