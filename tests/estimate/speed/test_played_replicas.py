"""Replicas behind a router, against the play of one of them with its share of the load."""

from __future__ import annotations

from dataclasses import replace

import pytest
from step_clocks import PromptClock

from kvplan.estimate.speed.queueing.loads import LengthDistribution, PlayedLoad, steady_users
from kvplan.estimate.speed.queueing.play import play
from kvplan.estimate.speed.queueing.replicas import Router, play_replicas
from kvplan.estimate.speed.queueing.rules import SchedulingRules

RULES = SchedulingRules(max_num_seqs=16, max_num_batched_tokens=256, pool_tokens=1e9)
ROUTERS: tuple[Router, ...] = ("round_robin", "least_loaded")


def at_rate(rate: float, count: int = 400) -> PlayedLoad:
    return PlayedLoad(
        LengthDistribution(200, "uniform", 0.5),
        LengthDistribution(40, "uniform", 0.5),
        count,
        rate,
        num_warmups=count // 8,
    )


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize(
    "load",
    [at_rate(2.0, 200), steady_users(8, 200, 40), PlayedLoad(LengthDistribution(100), LengthDistribution(9), 30)],
)
def test_one_replica_is_what_a_play_is(load: PlayedLoad, router: Router) -> None:
    alone, routed = play(load, RULES, PromptClock()), play_replicas(load, RULES, PromptClock(), 1, router)
    assert routed.ttft.mean == pytest.approx(alone.ttft.mean, rel=0.02)
    assert routed.e2el.mean == pytest.approx(alone.e2el.mean, rel=0.02)
    assert routed.output_throughput == pytest.approx(alone.output_throughput, rel=0.02)


def test_at_a_rate_no_router_is_worse_than_a_share_of_the_load() -> None:
    """Four replicas near their capacity: a thinned Poisson process, every fourth request, the least loaded replica."""
    thinned = play(at_rate(3.4), RULES, PromptClock())
    in_turn, least = (play_replicas(at_rate(4 * 3.4, 1600), RULES, PromptClock(), 4, router) for router in ROUTERS)
    assert in_turn.ttft.p99 < least.ttft.p99 < thinned.ttft.p99
    assert in_turn.ttft.p99 < 0.6 * thinned.ttft.p99
    assert in_turn.e2el.mean == pytest.approx(least.e2el.mean, rel=0.03)
    assert least.e2el.mean < thinned.e2el.mean


@pytest.mark.parametrize("router", ROUTERS)
def test_far_from_capacity_they_agree(router: Router) -> None:
    share = play(at_rate(0.4), RULES, PromptClock())
    routed = play_replicas(at_rate(4 * 0.4, 400), RULES, PromptClock(), 4, router)
    assert routed.e2el.mean == pytest.approx(share.e2el.mean, rel=0.08)
    assert routed.ttft.mean == pytest.approx(share.ttft.mean, rel=0.08)


@pytest.mark.parametrize("router", ROUTERS)
def test_users_who_are_not_kept_to_a_replica_wait_longer_for_a_first_token(router: Router) -> None:
    """And as long for the whole answer."""
    load = replace(steady_users(32, 200, 40), num_requests=400)
    routed = play_replicas(load, RULES, PromptClock(), 4, router)
    alone = play(replace(steady_users(8, 200, 40), num_requests=400), RULES, PromptClock())
    assert routed.e2el.mean == pytest.approx(alone.e2el.mean, rel=0.03)
    assert alone.ttft.mean < routed.ttft.mean < 1.6 * alone.ttft.mean
