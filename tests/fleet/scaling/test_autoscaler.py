"""Decisions of a HorizontalPodAutoscaler, worked out by hand from Kubernetes' rules."""

from __future__ import annotations

import pytest

from kvplan.errors import UsageError
from kvplan.fleet.scaling.play import Autoscaler
from kvplan.fleet.scaling.policy import MetricName, ReplicaPolicy, Trigger


def _policy(least: int = 1, most: int = 100, target: float = 5.0, num_spare: int = 0) -> ReplicaPolicy:
    return ReplicaPolicy(least, most, (Trigger("waiting", target),), 0.0, num_spare)


def _waiting(count: float) -> dict[MetricName, float]:
    return {"waiting": count, "in_flight": 0.0, "kv_usage": 0.0}


def test_as_many_as_the_sum_over_the_target() -> None:
    assert Autoscaler(_policy()).decide(0.0, _waiting(21), 3) == 5


@pytest.mark.parametrize(("waiting", "expected"), [(16, 3), (16.6, 4), (14, 3)])
def test_within_a_tenth_of_the_target_nothing_changes(waiting: float, expected: int) -> None:
    assert Autoscaler(_policy()).decide(0.0, _waiting(waiting), 3) == expected


def test_up_by_4_or_twice_in_15_seconds_whichever_is_more() -> None:
    scaler = Autoscaler(_policy())
    assert scaler.decide(0.0, _waiting(1000), 1) == 5
    assert scaler.decide(15.0, _waiting(1000), 5) == 10
    assert scaler.decide(20.0, _waiting(1000), 10) == 10  # 5 were added within the last 15 s
    assert scaler.decide(30.0, _waiting(1000), 10) == 20


def test_down_to_the_most_of_the_last_300_seconds() -> None:
    scaler = Autoscaler(_policy())
    assert scaler.decide(0.0, _waiting(50), 10) == 10
    for at in range(15, 301, 15):
        assert scaler.decide(float(at), _waiting(10), 10) == 10
    assert scaler.decide(315.0, _waiting(10), 10) == 2


def test_the_largest_of_several_triggers() -> None:
    triggers = (Trigger("waiting", 5.0), Trigger("kv_usage", 0.5))
    scaler = Autoscaler(ReplicaPolicy(1, 100, triggers, 0.0))
    assert scaler.decide(0.0, {"waiting": 0.0, "in_flight": 9.0, "kv_usage": 2.4}, 4) == 5


def test_bounds_and_a_spare_replica() -> None:
    assert Autoscaler(_policy(least=2)).decide(0.0, _waiting(0), 2) == 2
    assert Autoscaler(_policy(most=4)).decide(0.0, _waiting(1000), 3) == 4
    assert Autoscaler(_policy(num_spare=1)).decide(0.0, _waiting(21), 3) == 6


@pytest.mark.parametrize(("least", "most"), [(0, 3), (4, 3)])
def test_impossible_bounds_are_a_users_mistake(least: int, most: int) -> None:
    with pytest.raises(UsageError):
        _policy(least, most)
