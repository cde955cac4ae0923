"""What bound a run, and when the client says so of itself."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from fake_server import FakeServer, running
from load_helpers import load, record
from metric_pages import VLLM_LABELS, vllm_page
from simulated_server import Simulated

from kvplan.load.client.body import RequestForm
from kvplan.load.observed.figures import MeasuredRun, client_figures, resolved_percentile, series_of, server_figures
from kvplan.load.observed.health import ClientHealth, HealthMeter, ProcessSample, bound_reasons, client_health
from kvplan.load.observed.monitor import ServerView, engine_figures
from kvplan.load.observed.verdict import LoadVerdict, verdict
from kvplan.load.self_test import Ceiling
from kvplan.metrics.limits import ServerLimits
from kvplan.metrics.page import read_page
from kvplan.metrics.reading import ServerReading

HEALTHY = ClientHealth(0.001, 0.002, 0.3, ())


def reading(seconds: float = 0.0, **values: Any) -> ServerReading:
    found = read_page(vllm_page(**values), seconds)
    assert found is not None
    return found


def view(*readings: ServerReading, max_num_seqs: int | None = None) -> ServerView:
    return ServerView(
        tuple(replace(each, seconds=place) for place, each in enumerate(readings)), ServerLimits(max_num_seqs)
    )


def test_requests_that_never_wait_leave_the_load_as_the_limit() -> None:
    found = verdict(HEALTHY, view(*[reading(waiting=0)] * 20, reading(waiting=3)))
    assert (found.bound_by, "5 %" in found.sentence) == ("load", True)


def test_a_full_pool_with_a_queue_is_bound_by_kv() -> None:
    assert verdict(HEALTHY, view(*[reading(usage=0.97)] * 4)).bound_by == "kv"


def test_preemptions_with_a_queue_are_bound_by_kv_even_between_readings_of_a_full_pool() -> None:
    found = verdict(HEALTHY, view(*[reading(usage=0.9)] * 3, reading(usage=0.9, preemptions=5)))
    assert found.bound_by == "kv" and "5 times" in found.sentence


def test_a_queue_before_full_seats_is_bound_by_them() -> None:
    assert verdict(HEALTHY, view(*[reading(running=16)] * 4, max_num_seqs=16)).bound_by == "seats"
    assert verdict(HEALTHY, view(*[reading(running=9)] * 4, max_num_seqs=16)).bound_by == "compute"


def test_engines_behind_one_address_are_told_apart() -> None:
    """What happened to each while the load ran, beside their sum."""
    labels = [VLLM_LABELS.replace('"0"', f'"{number}"') for number in range(2)]

    def pair(usage: float, preemptions: int) -> ServerReading:
        page = vllm_page(labels=labels[0], usage=usage, running=3)
        found = read_page(page + vllm_page(labels=labels[1], usage=0.1, running=1, preemptions=preemptions))
        assert found is not None
        return found

    idle, busy = engine_figures(view(*[pair(0.2, 0)] * 3, pair(0.6, 4))).values()
    assert (idle.kv_usage_max, idle.max_running, idle.num_preemptions) == (0.6, 3, 0)
    assert (busy.kv_usage_max, busy.max_running, busy.num_preemptions) == (0.1, 1, 4)
    assert server_figures(view(pair(0.2, 0)))["data_parallel_size"] == 2
    assert engine_figures(view(reading(), reading())) == {}
    assert engine_figures(view()) == {}


def test_seats_that_nobody_tells_show_as_a_plateau() -> None:
    assert verdict(HEALTHY, view(*[reading(running=16)] * 9, reading(running=15))).bound_by == "seats"
    standing_still = [reading(running=8)] * 4 + [reading(running=1)] * 6  # during a step that fills the batch
    assert verdict(HEALTHY, view(*standing_still)).bound_by == "seats"
    varying = [reading(running=float(count)) for count in (9, 12, 10, 13, 11)]
    assert verdict(HEALTHY, view(*varying)).bound_by == "compute"


def test_a_client_that_was_the_limit_says_nothing_of_the_server() -> None:
    bound = replace(HEALTHY, reasons=("it used 99 % of its one core",))
    assert verdict(bound, view(*[reading(usage=0.99)] * 4)).bound_by == "client"


def test_a_run_too_short_for_readings_has_no_gauges_and_no_verdict() -> None:
    """Most readings are before and after it, when nothing ran: counts are known, how full the pool was is not."""
    idle = {"usage": 0.0, "running": 0, "waiting": 0}
    server = view(reading(**idle), reading(**idle), reading(**idle, preemptions=2)).of_run(0.2, 1.4)
    row = server_figures(server)
    for name in ("kv_usage_mean", "kv_usage_max", "max_running", "max_waiting"):
        assert row[name] is None  # type: ignore[literal-required]
    assert row["num_preemptions"] == 2
    found = verdict(HEALTHY, server)
    assert found.bound_by is None and "too short" in found.sentence
    assert series_of(MeasuredRun((record(0.2, (0.3, 1.4)),), is_open=False), server) is None
    assert server_figures(view(*[reading(**idle)] * 6).of_run(0.2, 4.4))["max_running"] == 0


def test_a_server_that_failed_most_of_its_requests_has_no_verdict() -> None:
    lost = [record(1.0, (), ended=9.0, error="connection refused")] * 3
    found = verdict(HEALTHY, view(*[reading(running=16)] * 4, max_num_seqs=16), [record(), *lost])
    assert found == LoadVerdict(None, "not known: 3 of 4 requests failed")
    row = client_figures(MeasuredRun((record(), *lost), is_open=False), {})
    assert (row["duration"], row["failed"], row["request_throughput"]) == (9.0, 3, pytest.approx(1 / 9))


def test_without_metrics_there_is_no_verdict() -> None:
    assert verdict(HEALTHY, ServerView()).bound_by is None


@pytest.mark.parametrize(
    ("delay", "median_ttft", "lag", "median_tpot", "cpu", "is_bound"),
    [
        (0.001, 0.010, 0.001, 0.010, 0.5, False),  # a timer's millisecond
        (0.004, 0.010, 0.001, 0.010, 0.5, True),  # 40 % of what is measured
        (0.004, 1.000, 0.001, 0.010, 0.5, False),
        (0.020, 1.000, 0.001, 0.010, 0.5, True),
        (0.020, 5.000, 0.001, 0.010, 0.5, False),  # 20 ms of 5 s
        (0.001, 0.500, 0.040, 0.010, 0.5, True),
        (0.001, 0.500, 0.040, 0.200, 0.5, False),
        (0.001, 0.500, 0.001, 0.010, 0.95, True),
        (0.001, None, 0.001, None, 0.5, False),
        (0.020, None, 0.001, None, 0.5, True),
    ],
)
def test_when_the_client_is_the_limit(
    delay: float, median_ttft: float | None, lag: float, median_tpot: float | None, cpu: float, is_bound: bool
) -> None:
    assert bool(bound_reasons(delay, median_ttft, lag, median_tpot, cpu)) == is_bound


def test_a_blocked_event_loop_is_seen() -> None:
    async def blocked() -> ClientHealth:
        async with HealthMeter() as meter:
            await asyncio.sleep(0.06)
            time.sleep(0.2)
            await asyncio.sleep(0.06)
        return client_health([], [meter.sample])

    health = asyncio.run(blocked())
    assert health.loop_lag_p99 > 0.1
    assert health.is_bound


def test_an_overloaded_client_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    write = RequestForm.request

    def slow(self: RequestForm, prompt: str, num_output_tokens: int, seed: int) -> bytes:
        time.sleep(0.03)
        return write(self, prompt, num_output_tokens, seed)

    with running(FakeServer(ttft=0.01)) as server:
        monkeypatch.setattr(RequestForm, "request", slow)
        run = load(server, num_prompts=20, request_rate="200", output_len="2")
    row = run.row({})
    assert row["client_bound"] is True
    assert row["bound_by"] == "client"


def test_a_ceiling_close_to_what_was_measured_is_a_warning() -> None:
    ceiling = Ceiling(30_000.0, 1e-5, 16)
    assert ceiling.warning(5_000.0) is None
    assert "2.0 times" in str(ceiling.warning(15_000.0))


def test_the_servers_side_stands_in_the_row() -> None:
    server = view(
        reading(usage=0.1, running=1, waiting=0, queue=[0.1]),
        *[reading(usage=0.8, running=6, waiting=3)] * 2,
        reading(
            usage=0.3, running=2, waiting=0, queue=[0.1, 0.9, 3.0], ttft=[0.05, 0.15], preemptions=2, hits=5, queries=20
        ),
        max_num_seqs=64,
    )
    row = server_figures(server)
    assert (row["engine"], row["kv_usage_max"], row["max_running"], row["max_waiting"]) == ("vllm", 0.8, 6, 3)
    assert (row["num_preemptions"], row["num_cached_tokens"], row["prefix_hit_rate"]) == (2, 5, 0.25)
    assert row["server_mean_ttft_ms"] == pytest.approx(100)
    assert row["server_mean_queue_ms"] == pytest.approx(1950)
    assert row["kv_cache_tokens"] == 8064
    assert row["max_num_seqs"] == 64


def test_the_servers_drafts_stand_in_the_row() -> None:
    row = server_figures(
        view(reading(accepted=[10, 9, 1]), *[reading(accepted=[20, 17, 3])] * 2, reading(accepted=[30, 25, 5]))
    )
    assert (row["num_drafts"], row["num_draft_tokens"], row["num_accepted_tokens"]) == (20, 40, 20)
    assert (row["acceptance_rate"], row["mean_acceptance_length"]) == (0.5, 2.0)
    assert row["accepted_per_position"] == "0.800 0.200"
    assert "num_drafts" not in server_figures(view(*[reading()] * 4))


def test_a_queue_within_the_first_bucket_has_no_percentile() -> None:
    quick = reading(queue=[0.001] * 50).queue_time
    assert quick is not None
    assert quick.percentile(95) == pytest.approx(0.285), "what interpolation would make of 1 ms"
    assert resolved_percentile(quick, 95) is None
    assert resolved_percentile(reading(queue=[0.001] * 5 + [0.7] * 5).queue_time, 95) == pytest.approx(0.77)


def test_what_a_server_does_not_tell_is_an_empty_cell() -> None:
    bare = read_page("vllm:num_requests_running 2.0\n", 0.0)
    assert bare is not None
    row = server_figures(ServerView((bare,) * 4))
    for name in ("kv_usage_max", "num_preemptions", "queue_p95", "prefix_hit_rate", "server_mean_ttft_ms"):
        assert row[name] is None  # type: ignore[literal-required]
    assert row["max_running"] == 2


def test_latency_counts_from_the_schedule_in_an_open_loop_and_from_sending_in_a_closed_one() -> None:
    late = record(10.0, (12.0, 12.5), started=11.0)
    opened = client_figures(MeasuredRun((late,), is_open=True), {})
    closed = client_figures(MeasuredRun((late,), is_open=False), {})
    assert (opened["mean_ttft_ms"], closed["mean_ttft_ms"]) == (2000, 1000)
    assert opened["mean_sent_ttft_ms"] == closed["mean_sent_ttft_ms"] == 1000
    assert (opened["mean_e2el_ms"], opened["duration"]) == (2500, 2.5)


def test_tokens_of_warm_up_requests_within_the_measured_part_count_as_the_servers_work() -> None:
    warm = record(0.0, (0.5, 1.5, 2.5, 3.5), is_warmup=True)
    measured = record(1.0, (2.0, 3.0, 4.0), started=1.0)
    row = client_figures(MeasuredRun((warm, measured), is_open=False), {})
    assert (row["completed"], row["total_output_tokens"], row["duration"]) == (1, 3, 3.0)
    assert row["output_throughput"] == pytest.approx((3 + 3) / 3)
    assert row["request_throughput"] == pytest.approx(2 / 3)


def test_tokens_known_only_at_the_end_give_tpot_but_no_gaps() -> None:
    spread = record(0.0, (1.0, 2.0), counts=[], num_output_tokens=11, token_source="usage")
    row = client_figures(MeasuredRun((spread,), is_open=False), {})
    assert (row["mean_tpot_ms"], row["total_output_tokens"], row["mean_itl_ms"]) == (pytest.approx(100), 11, None)


EACH = 240
"""Tokens of a sequence of the simulated servers: 200 of prompt and 40 of answer."""
PER_SECOND = 64 / (40 * 0.02)
"""Requests that 64 seats serve in a second: each has 40 steps of 20 ms."""


BOUND_BY = {
    "load": (
        *(Simulated(in_flight=number) for number in (1, 4, 16, 40, 60)),
        *(Simulated(rate=rate) for rate in (2.0, 0.3 * PER_SECOND, 0.6 * PER_SECOND)),
        Simulated(rate=8.0, late_seconds=0.0015),  # by a timer
        *(Simulated(in_flight=3, answer=8, late_seconds=late) for late in (0.0038, 0.020)),  # latency is from sending
    ),
    "seats": (
        *(Simulated(seats=seats, in_flight=number) for seats, number in ((4, 8), (16, 64), (64, 65), (64, 200))),
        *(Simulated(rate=share * PER_SECOND) for share in (1.3, 2.0)),
        Simulated(seats=16, in_flight=40, tells_seats=False),
    ),
    # a pool for fewer than the seats, whatever is left over, up to a whole sequence less one token
    "kv": (
        *(Simulated(pool_tokens=held * EACH, in_flight=64) for held in (3, 7, 30, 50)),
        *(Simulated(pool_tokens=held * EACH + EACH // 2, in_flight=64) for held in (3, 7, 30, 50)),
        *(Simulated(pool_tokens=held * EACH + 10, rate=PER_SECOND) for held in (7, 30)),
    ),
    # one prompt per step of 20 ms: 50 in a second, although seats and pool have room
    "compute": tuple(Simulated(seats=512, prompts_per_step=200, answer=4, rate=rate) for rate in (70.0, 120.0)),
    # latencies of an open loop count from the schedule: 5 ms are a quarter of a step's time
    "client": tuple(Simulated(rate=8.0, late_seconds=late) for late in (0.005, 0.050)),
}


@pytest.mark.parametrize(
    ("bound", "server"), [(bound, each) for bound, servers in BOUND_BY.items() for each in servers]
)
def test_what_bounds_a_server_is_found(bound: str, server: Simulated) -> None:
    found = server.verdict()
    assert found.bound_by == bound, found.sentence


@pytest.mark.parametrize("answer", [1, 8, 40])
@pytest.mark.parametrize("seats", [2, 8, 64])
def test_as_many_in_flight_as_seats_are_bound_by_the_seats(seats: int, answer: int) -> None:
    """Nobody waits, but one more would: served, not sooner."""
    found = Simulated(seats=seats, in_flight=seats, answer=answer).verdict()
    assert found.bound_by == "seats"
    assert "another request would wait" in found.sentence


def test_seats_that_are_not_told_may_be_what_ran_all_the_time() -> None:
    """As far as anybody can see, more would be served; the sentence says what it depends on."""
    found = Simulated(seats=16, in_flight=16, tells_seats=False, answer=400).verdict()
    assert found.bound_by == "load"
    assert "unless 16 at once is the server's max_num_seqs" in found.sentence


@pytest.mark.parametrize("seconds", [0.3, 0.9])
def test_a_run_of_less_than_four_readings_has_no_verdict(seconds: float) -> None:
    found = Simulated(in_flight=200, seconds=seconds).verdict()
    assert found.bound_by is None
    assert found.text == (
        "Bottleneck unknown: the run was too short to sample the server's metrics (it needs 4 readings, 1 s)"
    )


def test_a_few_late_requests_of_an_open_loop_are_judged_by_what_they_change() -> None:
    """3.4 ms at the 99th percentile are 7 % of the median TTFT, and 2 % of the TTFT that they are added to."""
    records = [record(place, (place + 0.048 + 0.001 * place, place + 1.0)) for place in map(float, range(100))]
    for late in records[::20]:
        late.started += 0.0034
    sample = ProcessSample((0.001,), 1.0, 100.0)
    assert client_health(records, [sample], is_open=True).reasons == ()
    for late in records[::20]:
        late.started += 0.030
    (reason,) = client_health(records, [sample], is_open=True).reasons
    assert reason.startswith("requests were sent up to 33.4 ms late (p99)")
