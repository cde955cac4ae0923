"""Pools of every ratio beside replicas that do both, with clocks whose answer is known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import pytest

from kvplan.estimate.speed.queueing.figures import Distribution
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.vllm.groups import BlockPlan, PageGroup
from kvplan.estimate.vllm.pages import LayerPage
from kvplan.fleet.apart.compare import PoolComparison, Split, SplitComparison
from kvplan.fleet.apart.moved import MovedKv
from kvplan.fleet.apart.play import ApartSetup, PoolSetup
from kvplan.fleet.apart.rules import VLLM
from kvplan.fleet.replicas.seen import Seen
from kvplan.fleet.replicas.setup import PoolLayout, ReplicaSetup
from kvplan.fleet.requests import FleetRequest
from kvplan.fleet.routers.in_turn import LeastLoaded
from kvplan.fleet.routers.interface import Router


@dataclass(frozen=True)
class _PerToken:
    """A millisecond a token, and five a step: a step that reads a prompt is long for those that decode beside it."""

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        return 0.005 + 0.001 * num_tokens


_SETUP = ReplicaSetup(SchedulingRules(64, 2048, 64_000), _PerToken(), PoolLayout.full_attention(16, 4000))
_MOVED = MovedKv(BlockPlan((PageGroup(LayerPage("full", 16, 16_000), 1),), 16_000))


def _routers() -> tuple[Router, Router, Router]:
    return LeastLoaded(), LeastLoaded(), LeastLoaded()


def _judge(tpot: float, ttft: float, seen: Sequence[Seen], speed: float) -> float:
    tpots = [found for each in seen if (found := each.tpot_seconds) is not None]
    of_tpot = Distribution.of(tpots).p95 / tpot
    return max(of_tpot, Distribution.of([each.ttft_seconds for each in seen]).p95 / ttft)


@cache
def _compare(
    tpot: float, link: float = 1e12, num_replicas: int = 4, rate: float = 1.5, count: int = 80, ttft: float = 8.0
) -> SplitComparison:
    rng, sent, requests = random.Random(1), 0.0, []
    for number in range(count):
        requests.append(FleetRequest(number, sent, 1000, 50))
        sent += rng.expovariate(rate)
    pool = PoolSetup(_SETUP, link)
    apart = ApartSetup(pool, pool, _MOVED, VLLM)
    judge = lambda seen, speed: _judge(tpot, ttft, seen, speed)  # noqa: E731 - short
    return PoolComparison(requests, apart, _SETUP, (1, 1, 1), judge, _routers).compare(num_replicas, 1.2)


def test_a_bound_on_tokens_that_prompts_break_is_kept_by_pools_at_more_load() -> None:
    """A prompt of a second between two tokens of somebody makes 20 ms of 50 tokens' mean."""
    found = _compare(tpot=0.015)
    assert found.best is not None
    assert found.pays
    assert found.gain > 1.5
    assert found.best.split == Split(3, 1)


def test_without_a_bound_on_tokens_all_replicas_had_better_read_prompts() -> None:
    found = _compare(tpot=10.0)
    assert found.gain < 1
    assert not found.pays


def test_a_slow_link_costs_pools_their_gain() -> None:
    """A prompt of 1 MB over 200 kB/s takes five seconds."""
    assert not _compare(tpot=0.015, link=200_000.0).pays


def test_a_gain_within_the_error_is_none() -> None:
    found = _compare(tpot=0.015)
    assert replace(found, error_factor=found.gain * 1.01).pays is False
    assert replace(found, error_factor=found.gain * 0.99).pays is True


def test_pools_have_as_many_gpus_as_the_fleet_at_most() -> None:
    found = _compare(tpot=0.015)
    assert found.num_ratios == 3
    assert all(each.num_gpus == found.together.num_gpus == 4 for each in found.splits)


def test_one_replica_cannot_be_split() -> None:
    found = _compare(tpot=0.015, num_replicas=1)
    assert found.best is None
    assert not found.pays
    assert found.gain == 0


def test_of_many_ratios_the_best_is_found_by_playing_a_few() -> None:
    """A second to read each prompt, and 0.3 s of a decode replica that takes many at once."""
    found = _compare(tpot=0.015, num_replicas=12, rate=6.0, count=80, ttft=2.5)
    assert found.num_ratios == 11
    assert found.best is not None
    assert found.best.split.num_prefill >= 9


def test_closed_loops_are_compared_by_requests_per_second() -> None:
    requests = [FleetRequest(n, 0.0, 1000, 50, after=n - 8 if n >= 8 else None) for n in range(64)]
    pool = PoolSetup(_SETUP, 1e12)
    comparison = PoolComparison(
        requests, ApartSetup(pool, pool, _MOVED, VLLM), _SETUP, (1, 1, 1), lambda seen, speed: 0.0, _routers
    )
    found = comparison.compare(2, 1.1)
    assert not found.by_load
    assert found.best is not None
    assert found.gain == pytest.approx(found.best.requests_per_second / found.together.requests_per_second)
