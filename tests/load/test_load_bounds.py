"""The verdict of a load on servers whose bound is known: 40 of them, in simulated time."""

from __future__ import annotations

import pytest
from load_helpers import record
from simulated_server import Simulated

from kvplan.load.observed.health import ProcessSample, client_health

EACH = 240
"""Tokens of a sequence of the simulated servers: 200 of prompt and 40 of answer."""
PER_SECOND = 64 / (40 * 0.02)
"""Requests that 64 seats serve in a second: each has 40 steps of 20 ms."""


@pytest.mark.parametrize("in_flight", [1, 4, 16, 40, 60])
def test_fewer_in_flight_than_seats_are_bound_by_the_load(in_flight: int) -> None:
    assert Simulated(in_flight=in_flight).verdict().bound_by == "load"


@pytest.mark.parametrize("rate", [2.0, 0.3 * PER_SECOND, 0.6 * PER_SECOND])
def test_arrivals_below_what_the_seats_serve_are_bound_by_the_load(rate: float) -> None:
    assert Simulated(rate=rate).verdict().bound_by == "load"


@pytest.mark.parametrize("answer", [1, 8, 40])
@pytest.mark.parametrize("seats", [2, 8, 64])
def test_as_many_in_flight_as_seats_are_bound_by_the_seats(seats: int, answer: int) -> None:
    """Nobody waits, but one more would: served, not sooner."""
    found = Simulated(seats=seats, in_flight=seats, answer=answer).verdict()
    assert found.bound_by == "seats"
    assert "another request would wait" in found.sentence


@pytest.mark.parametrize(("seats", "in_flight"), [(4, 8), (16, 64), (64, 65), (64, 200)])
def test_more_in_flight_than_seats_are_bound_by_the_seats(seats: int, in_flight: int) -> None:
    assert Simulated(seats=seats, in_flight=in_flight).verdict().bound_by == "seats"


@pytest.mark.parametrize("share", [1.3, 2.0])
def test_arrivals_above_what_the_seats_serve_are_bound_by_the_seats(share: float) -> None:
    assert Simulated(rate=share * PER_SECOND).verdict().bound_by == "seats"


def test_seats_that_are_not_told_are_bound_by_them_where_requests_wait() -> None:
    assert Simulated(seats=16, in_flight=40, tells_seats=False).verdict().bound_by == "seats"


def test_seats_that_are_not_told_may_be_what_ran_all_the_time() -> None:
    """As far as anybody can see, more would be served; the sentence says what it depends on."""
    found = Simulated(seats=16, in_flight=16, tells_seats=False, answer=400).verdict()
    assert found.bound_by == "load"
    assert "unless 16 at once is the server's max_num_seqs" in found.sentence


@pytest.mark.parametrize("num_held", [3, 7, 30, 50])
def test_a_pool_for_fewer_than_the_seats_is_bound_by_kv(num_held: int) -> None:
    """Whatever is left over, up to a whole sequence less one token."""
    for left_over in (0, EACH // 2):
        found = Simulated(pool_tokens=num_held * EACH + left_over, in_flight=64).verdict()
        assert found.bound_by == "kv", found.sentence


@pytest.mark.parametrize("num_held", [7, 30])
def test_arrivals_above_what_the_pool_holds_are_bound_by_kv(num_held: int) -> None:
    assert Simulated(pool_tokens=num_held * EACH + 10, rate=PER_SECOND).verdict().bound_by == "kv"


@pytest.mark.parametrize("rate", [70.0, 120.0])
def test_prompts_that_no_step_has_room_for_are_bound_by_compute(rate: float) -> None:
    """One prompt per step of 20 ms: 50 in a second, although seats and pool have room."""
    server = Simulated(seats=512, prompts_per_step=200, answer=4, rate=rate)
    assert server.verdict().bound_by == "compute"


@pytest.mark.parametrize("late_seconds", [0.005, 0.050])
def test_an_open_loop_that_sends_late_is_bound_by_the_client(late_seconds: float) -> None:
    """Its latencies count from the schedule: 5 ms are a quarter of a step's time."""
    assert Simulated(rate=8.0, late_seconds=late_seconds).verdict().bound_by == "client"


def test_an_open_loop_that_is_late_by_a_timer_is_not() -> None:
    assert Simulated(rate=8.0, late_seconds=0.0015).verdict().bound_by == "load"


@pytest.mark.parametrize("late_seconds", [0.0038, 0.020])
def test_lateness_distorts_nothing_in_a_closed_loop(late_seconds: float) -> None:
    """Latency counts from sending."""
    assert Simulated(in_flight=3, answer=8, late_seconds=late_seconds).verdict().bound_by == "load"


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
