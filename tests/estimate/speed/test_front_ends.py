"""The server's own work on requests: what is parsed together, what goes on one by one, and tokens in between."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan.catalog.releases.vllm import vllm_release
from kvplan.estimate.speed.queueing.figures import PlayedFigures
from kvplan.estimate.speed.queueing.front_end import (
    VLLM_FRONT_END,
    VLLM_TEMPLATE_SECONDS,
    FrontEnd,
    vllm_front_end,
)
from kvplan.estimate.speed.queueing.loads import LengthDistribution, PlayedLoad, steady_users, users
from kvplan.estimate.speed.queueing.play import play
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.steady import PromptReading, SharedSteps, behind_server, steady_state


class Clock:
    """Every step takes 10 ms."""

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        return 0.01


def _played(load: PlayedLoad, front_end: FrontEnd, **rules: bool) -> PlayedFigures:
    return play(load, SchedulingRules(256, 8192, 1e9, front_end=front_end, **rules), Clock())


BURST = PlayedLoad(LengthDistribution(16), LengthDistribution(2), 50)


def test_requests_that_were_sent_together_are_parsed_before_one_goes_on() -> None:
    ttft = _played(BURST, FrontEnd(parsing_seconds=0.1)).ttft
    assert (ttft.median, ttft.p99) == (pytest.approx(5.01), pytest.approx(5.01))


def test_the_engine_is_handed_one_after_another() -> None:
    """A token waits for the request that the loop has turned to: the k-th until (k + 1) x 0.1 s."""
    ttft = _played(BURST, FrontEnd(request_seconds=0.1)).ttft
    assert (ttft.median, ttft.p99) == (pytest.approx(2.65), pytest.approx(5.0, abs=0.02))


@pytest.mark.parametrize("ahead", [False, True])
def test_a_request_alone_waits_for_all_of_it_and_streams_at_the_engines_pace(ahead: bool) -> None:
    played = _played(users(1, 16, 10), FrontEnd(0.02, 0.03, 0.001), schedules_ahead=ahead)
    assert played.ttft.median == pytest.approx(0.02 + 0.03 + 0.01 + 0.001)
    assert played.tpot is not None
    assert played.tpot.median == pytest.approx(0.01)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_busy_event_loop_bounds_the_throughput_and_starves_nobody(ahead: bool) -> None:
    """50 tokens of 5 ms and 10 ms more: under 4 requests a second, where the engine answers 32 in half a second."""
    front = FrontEnd(request_seconds=0.01, token_seconds=0.005)
    played = _played(users(32, 16, 50, rounds=8), front, schedules_ahead=ahead)
    assert played.request_throughput == pytest.approx(1 / front.seconds(50), rel=0.05)
    assert played.max_running > 1


class ReadingClock:
    """Steps are longer the more tokens they compute."""

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        return self._step_seconds + 2.5e-5 * num_tokens


def test_a_faster_engine_is_not_handed_requests_later() -> None:
    """512 tokens are streamed in 24 ms. Where decoding takes less, tokens wait to be streamed; requests need not wait
    for all of these, as steps that read prompts leave the loop time enough."""

    def first_token_seconds(step_seconds: float) -> float:
        rules = SchedulingRules(512, 8192, 1e9, front_end=VLLM_FRONT_END, schedules_ahead=True)
        return play(steady_users(512, 512, 128), rules, ReadingClock(step_seconds)).ttft.median

    assert VLLM_FRONT_END.token_seconds * 512 == pytest.approx(0.0243, abs=1e-4)
    slow, fast = (first_token_seconds(decoding - 2.5e-5 * 512) for decoding in (0.031, 0.023))
    assert fast < 1.5 * slow  # 4 times as long where requests wait for all tokens


def test_tokens_that_are_streamed_in_time_cost_no_throughput() -> None:
    free, busy = (_played(users(8, 16, 50), FrontEnd(token_seconds=each)) for each in (0.0, 0.001))
    assert busy.tpot is not None and free.tpot is not None
    assert busy.tpot.median == pytest.approx(free.tpot.median)
    assert busy.e2el.median == pytest.approx(free.e2el.median + 8 * 0.001, abs=0.002)


def test_instances_behind_one_server_wait_for_each_others_requests() -> None:
    front = FrontEnd(0.001, 0.01, 0.0001)
    whole, half = _played(replace(BURST, num_requests=100), front), _played(BURST, front.shared_by(2))
    assert half.ttft.p99 == pytest.approx(whole.ttft.p99, rel=0.02)


def test_time_away_from_the_loop_delays_each_request_and_fills_nothing() -> None:
    """What was measured of a lone request is one step and 9.1 ms; a busy loop answers as many as before."""
    front = replace(VLLM_FRONT_END, token_seconds=0.0)
    assert _played(users(1, 16, 10), front).ttft.median == pytest.approx(0.01 + 0.0091)
    assert front.shared_by(2).away_seconds == front.away_seconds
    busy = FrontEnd(request_seconds=0.02)
    throughputs = [
        _played(users(64, 16, 50, rounds=8), each).request_throughput
        for each in (busy, replace(busy, away_seconds=0.01))
    ]
    assert throughputs[1] == pytest.approx(throughputs[0], rel=0.02)


def test_several_servers_share_the_work_and_a_request_alone_takes_as_long() -> None:
    front = FrontEnd(0.02, 0.03, 0.002)
    four = replace(front, servers=4)
    busy, shared = (_played(users(32, 16, 50, rounds=16), each) for each in (front, four))
    assert shared.request_throughput == pytest.approx(4 * busy.request_throughput, rel=0.05)
    alone = _played(users(1, 16, 10), four).ttft
    assert alone.median == pytest.approx(0.02 / 4 + 0.03 + 0.01 + 0.002 / 4)


@pytest.mark.parametrize(("version", "groups", "servers"), [("0.14.1", 8, 1), ("0.15.0", 8, 8), ("latest", 1, 1)])
def test_releases_with_a_server_for_each_group(version: str, groups: int, servers: int) -> None:
    assert vllm_front_end(vllm_release(version), chats=True, groups=groups).servers == servers


@pytest.mark.parametrize(("num_users", "is_bounded"), [(32, False), (96, False), (192, True), (512, True)])
def test_a_steady_state_answers_what_a_play_does(num_users: int, is_bounded: bool) -> None:
    """With the server's event loop idle and busy: throughput within 6 %, and TTFT once the queue before it is long.

    In the play a busy loop takes longer to settle than requests are played, hence the larger bound for it.
    """
    step = Clock().seconds(num_users, num_users, num_users, 0, 0.0)
    prompts = PromptReading(chunks=0.1, seconds_away=VLLM_FRONT_END.first_token_seconds)
    free = steady_state(SharedSteps(step, lambda read: step), prompts, num_users, 128)
    steady = behind_server(free, VLLM_FRONT_END, 128)
    played = _played(replace(steady_users(num_users, 512, 128), num_requests=12 * num_users), VLLM_FRONT_END)
    tolerance = 0.1 if is_bounded else 0.06
    assert steady.requests_per_second == pytest.approx(num_users / played.e2el.mean, rel=tolerance)
    assert (VLLM_FRONT_END.busy_share(free.requests_per_second, 128) > 1) is is_bounded
    assert (steady.ttft_seconds > 10 * free.ttft_seconds) is is_bounded
    assert steady.tpot_seconds == free.tpot_seconds


@pytest.mark.parametrize(
    ("version", "parses"),
    [
        ("0.6.4", False),
        ("0.6.5", True),
        ("0.9.1", True),
        ("0.9.2", False),
        ("0.10.2", False),
        ("0.11.0", True),
        ("0.11.1", False),
        ("latest", False),
    ],
)
def test_releases_that_parse_the_template_of_each_chat(version: str, parses: bool) -> None:
    release = vllm_release(version)
    plain = VLLM_FRONT_END if release.v1 else replace(VLLM_FRONT_END, away_seconds=0.0)
    assert vllm_front_end(release, chats=True).parsing_seconds == (VLLM_TEMPLATE_SECONDS if parses else 0)
    assert vllm_front_end(release, chats=False) == plain
    assert vllm_front_end(release, chats=True, model_type="gpt_oss") == plain  # rendered by openai_harmony


def test_a_request_with_its_tokens_costs_what_was_measured() -> None:
    """10,000 chats of 200 tokens in 131 s, and one token's request without parsing a third of one with it."""
    assert VLLM_FRONT_END.seconds(200) == pytest.approx(0.0131, rel=0.02)
    alone = VLLM_FRONT_END.seconds(1)
    assert 2.8 < (alone + VLLM_TEMPLATE_SECONDS) / alone < 3.2
