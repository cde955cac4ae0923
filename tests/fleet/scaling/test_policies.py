"""A trace on replicas that come and go, with a clock of so many seconds a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from kvplan.errors import UsageError
from kvplan.estimate.speed.queueing.figures import Distribution
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.fleet.replicas.fleet import Fleet
from kvplan.fleet.replicas.replica import Replica
from kvplan.fleet.replicas.seen import Seen
from kvplan.fleet.replicas.setup import PoolLayout, ReplicaSetup
from kvplan.fleet.requests import FleetRequest, TokenRun
from kvplan.fleet.routers.in_turn import LeastLoaded
from kvplan.fleet.scaling.play import Autoscaler, play_policy
from kvplan.fleet.scaling.policy import ColdStart, MetricName, ReplicaPolicy, Trigger
from kvplan.fleet.scaling.search import ScalingSearch
from kvplan.units import GIB


@dataclass(frozen=True)
class _PerToken:
    """A request of 100 tokens of prompt and one of answer takes two seconds."""

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        return 0.02 * num_tokens


_SETUP = ReplicaSetup(SchedulingRules(64, 100, 16_000), _PerToken(), PoolLayout.full_attention(16, 1000))
"""Reads one prompt of 100 tokens in each step."""


def _every(seconds: float, until: float, start: float = 0.0, first: int = 0) -> list[FleetRequest]:
    count = round((until - start) / seconds)
    return [FleetRequest(first + index, start + seconds * index, 100, 1) for index in range(count)]


def _rush() -> list[FleetRequest]:
    """Five quiet minutes, four busy ones with two requests a second, and half an hour of quiet."""
    requests = _every(6.0, 300.0)
    requests += _every(0.5, 540.0, 300.0, len(requests))
    return requests + _every(6.0, 2400.0, 540.0, len(requests))


def _policy(least: int, most: int, cold_start: float, target: float = 2.0) -> ReplicaPolicy:
    return ReplicaPolicy(least, most, (Trigger("waiting", target),), cold_start, metric_age_seconds=0.0)


def _p99_ttft_of(bound: float, seen: Sequence[Seen]) -> float:
    return Distribution.of([each.ttft_seconds for each in seen]).p99 / bound


def _times(seen: Seen) -> tuple[int, int, float, float]:
    return seen.request.number, seen.replica, seen.first, seen.last


def test_with_as_many_at_least_as_at_most_it_is_the_plain_fleet() -> None:
    requests = _rush()
    plain = Fleet(_SETUP, 5, LeastLoaded(), sample_seconds=15.0).play(requests)
    played = play_policy(requests, _SETUP, _policy(5, 5, 60.0), LeastLoaded())
    assert [_times(each) for each in played.play.seen] == [_times(each) for each in plain.seen]
    assert played.replica_seconds == pytest.approx(5 * max(each.last for each in plain.seen))
    assert played.num_starts == 0


@pytest.mark.parametrize("cold_start", [0.0, 45.0, 120.0])
def test_a_cold_start_shifts_capacity_by_exactly_that(cold_start: float) -> None:
    played = play_policy(_rush(), _SETUP, _policy(1, 8, cold_start), LeastLoaded())
    started = [each for each in played.spans if each.asked_at > 0]
    assert started
    assert all(each.ready_at - each.asked_at == cold_start for each in started)
    for index, span in enumerate(played.spans):
        sent = [each.sent for each in played.play.seen if each.replica == index]
        assert not sent or min(sent) >= span.ready_at


def test_a_longer_cold_start_lets_requests_wait_longer() -> None:
    waits = [
        max(each.ttft_seconds for each in play_policy(_rush(), _SETUP, _policy(1, 8, cold), LeastLoaded()).play.seen)
        for cold in (0.0, 60.0, 240.0)
    ]
    assert waits[0] < waits[1] < waits[2]


def test_a_drained_replica_finishes_what_it_has_and_gets_nothing_more() -> None:
    requests = _rush()
    played = play_policy(requests, _SETUP, _policy(1, 8, 30.0), LeastLoaded())
    assert [each.request.number for each in played.play.seen] == list(range(len(requests)))
    drained = [(index, each) for index, each in enumerate(played.spans) if each.drained_at < 2400]
    assert drained
    for index, span in drained:
        of_it = [each for each in played.play.seen if each.replica == index]
        assert all(each.sent <= span.drained_at for each in of_it)
        assert span.gone_at == max([span.drained_at, *(each.last for each in of_it)])


def test_replicas_that_go_are_the_newest() -> None:
    played = play_policy(_rush(), _SETUP, _policy(1, 8, 30.0), LeastLoaded())
    assert played.spans[0].drained_at == float("inf")
    assert played.replica_seconds < 8 * 2400


def test_the_search_finds_a_policy_that_keeps_the_service_level_for_less_than_a_fixed_fleet() -> None:
    search = ScalingSearch(_rush(), _SETUP, LeastLoaded, lambda seen: _p99_ttft_of(60.0, seen), 30.0)
    fixed = search.fixed(16)
    assert fixed is not None
    assert fixed.num_replicas == 4  # four seconds of work in each second of the rush
    answer = search.answer(fixed, 1, 8)
    assert answer.best is not None
    assert answer.best.keeps
    assert answer.perfect_replica_seconds <= answer.best.played.replica_seconds < fixed.replica_seconds
    assert 0 < answer.saved_share < 1


def test_where_no_policy_keeps_it_more_replicas_at_least_do() -> None:
    """A start takes longer than the rush."""
    search = ScalingSearch(_rush(), _SETUP, LeastLoaded, lambda seen: _p99_ttft_of(5.0, seen), 900.0)
    fixed = search.fixed(16)
    assert fixed is not None
    answer = search.answer(fixed, 1, 8)
    assert answer.best is not None
    assert answer.best.played.policy.min_replicas == fixed.num_replicas
    assert answer.saved_share == 0


def test_no_number_of_replicas_keeps_what_one_request_alone_misses() -> None:
    search = ScalingSearch(_every(5.0, 100.0), _SETUP, LeastLoaded, lambda seen: _p99_ttft_of(0.5, seen), 0.0)
    assert search.fixed(8) is None


def test_a_cold_start_is_what_was_stated_or_says_what_is_assumed() -> None:
    assert ColdStart.of(0, 90.0).seconds == 90
    assumed = ColdStart.of(round(12 * GIB))
    assert assumed.seconds == pytest.approx(10 + 240)
    assert "assumed" in assumed.note
    assert "--cold-start" in replace(assumed, is_stated=True).note


def test_spare_replicas_are_paid_for_on_both_sides() -> None:
    requests = _every(4.0, 400.0)
    search = ScalingSearch(requests, _SETUP, LeastLoaded, lambda seen: _p99_ttft_of(10.0, seen), 0.0, num_spare=1)
    fixed = search.fixed(4)
    assert fixed is not None
    assert (fixed.num_replicas, fixed.replica_seconds) == (1, pytest.approx(2 * fixed.seconds))
    answer = search.answer(fixed, 1, 4)
    assert answer.best is not None
    assert answer.best.played.replica_seconds == pytest.approx(fixed.replica_seconds, rel=0.1)


def test_tokens_in_flight_ask_for_replicas_by_the_length_of_prompts() -> None:
    """As many requests, of which those of the second half have prompts eight times as long."""
    short, long = _every(4.0, 600.0), _every(4.0, 1200.0, 600.0, 150)
    requests = [*short, *(replace(each, num_prompt_tokens=800) for each in long)]
    setup = replace(_SETUP, rules=SchedulingRules(64, 800, 16_000))
    policy = ReplicaPolicy(1, 40, (Trigger("prompt_tokens", 1600.0),), 0.0, metric_age_seconds=0.0)
    played = play_policy(requests, setup, policy, LeastLoaded())
    begun = [each.asked_at for each in played.spans if each.asked_at > 0]
    assert begun and min(begun) > 600  # two seconds a short prompt, sixteen a long one


def test_tokens_in_flight_are_tried_where_the_router_counts_them() -> None:
    for counts in (False, True):
        search = ScalingSearch(
            _rush(), _SETUP, LeastLoaded, lambda seen: _p99_ttft_of(60.0, seen), 30.0, counts_prompt_tokens=counts
        )
        fixed = search.play_fixed(4, _rush())
        answer = search.answer(fixed, 1, 8)
        of_tokens = [
            each
            for each in answer.tried
            for trigger in each.played.policy.triggers
            if trigger.metric == "prompt_tokens"
        ]
        assert bool(of_tokens) is counts
        if counts:
            # a request of 100 tokens is unread until the step that reads it ends, and all that wait are
            assert fixed.prompt_tokens == pytest.approx(100 * fixed.in_flight, rel=0.5)


def test_what_a_cache_has_is_no_token_in_flight() -> None:
    runs = (TokenRun(1, 96),)
    replica = Replica(_SETUP)
    replica.deliver(FleetRequest(0, 0.0, 96, 1, runs), 0.0)
    replica.advance(10.0)
    for number in (1, 2):
        replica.deliver(FleetRequest(number, 10.0, 96, 1, runs), 10.0)
    assert replica.num_waiting_tokens == 192 and replica.num_unread_tokens() == 2 * 16


def _hpa(least: int = 1, most: int = 100, target: float = 5.0, num_spare: int = 0) -> ReplicaPolicy:
    return ReplicaPolicy(least, most, (Trigger("waiting", target),), 0.0, num_spare)


def _waiting(count: float) -> dict[MetricName, float]:
    return {"waiting": count, "in_flight": 0.0, "kv_usage": 0.0}


def test_as_many_as_the_sum_over_the_target() -> None:
    assert Autoscaler(_hpa()).decide(0.0, _waiting(21), 3) == 5


@pytest.mark.parametrize(("waiting", "expected"), [(16, 3), (16.6, 4), (14, 3)])
def test_within_a_tenth_of_the_target_nothing_changes(waiting: float, expected: int) -> None:
    assert Autoscaler(_hpa()).decide(0.0, _waiting(waiting), 3) == expected


def test_up_by_4_or_twice_in_15_seconds_whichever_is_more() -> None:
    scaler = Autoscaler(_hpa())
    assert scaler.decide(0.0, _waiting(1000), 1) == 5
    assert scaler.decide(15.0, _waiting(1000), 5) == 10
    assert scaler.decide(20.0, _waiting(1000), 10) == 10  # 5 were added within the last 15 s
    assert scaler.decide(30.0, _waiting(1000), 10) == 20


def test_down_to_the_most_of_the_last_300_seconds() -> None:
    scaler = Autoscaler(_hpa())
    assert scaler.decide(0.0, _waiting(50), 10) == 10
    for at in range(15, 301, 15):
        assert scaler.decide(float(at), _waiting(10), 10) == 10
    assert scaler.decide(315.0, _waiting(10), 10) == 2


def test_the_largest_of_several_triggers() -> None:
    triggers = (Trigger("waiting", 5.0), Trigger("kv_usage", 0.5))
    scaler = Autoscaler(ReplicaPolicy(1, 100, triggers, 0.0))
    assert scaler.decide(0.0, {"waiting": 0.0, "in_flight": 9.0, "kv_usage": 2.4}, 4) == 5


def test_bounds_and_a_spare_replica() -> None:
    assert Autoscaler(_hpa(least=2)).decide(0.0, _waiting(0), 2) == 2
    assert Autoscaler(_hpa(most=4)).decide(0.0, _waiting(1000), 3) == 4
    assert Autoscaler(_hpa(num_spare=1)).decide(0.0, _waiting(21), 3) == 6


@pytest.mark.parametrize(("least", "most"), [(0, 3), (4, 3)])
def test_impossible_bounds_are_a_users_mistake(least: int, most: int) -> None:
    with pytest.raises(UsageError):
        _hpa(least, most)
