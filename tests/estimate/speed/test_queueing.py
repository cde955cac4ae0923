"""A load played against an instance: equal to the exact simulation, and what engines and front ends add to it."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise
from statistics import mean, median

import pytest
from step_clocks import EvenClock, FullClock

from kvplan.catalog.releases.vllm import vllm_release
from kvplan.estimate.speed.queueing.figures import Distribution, PlayedFigures
from kvplan.estimate.speed.queueing.loads import LengthDistribution, PlayedLoad, steady_rate, users
from kvplan.estimate.speed.queueing.play import play
from kvplan.estimate.speed.queueing.rules import SchedulingRules, sglang_rules, trtllm_rules, vllm_rules
from kvplan.estimate.speed.simulation.batching import simulate_requests
from kvplan.estimate.speed.simulation.figures import simulated_figures
from kvplan.estimate.speed.simulation.interface import BatchLimits
from kvplan.estimate.speed.steps.group_steps import AttendingStep, GroupSteps
from kvplan.settings import FilledSettings, ServingSettings
from kvplan.workload.requests import RequestSpec

ROOMY = SchedulingRules(max_num_seqs=64, max_num_batched_tokens=256, pool_tokens=1e9)


STAGGERED = PlayedLoad(
    LengthDistribution(100, "uniform", 0.5), LengthDistribution(30, "uniform", 0.2), 60, max_concurrency=4
)


def random_load(seed: int) -> tuple[PlayedLoad, SchedulingRules]:
    rng = random.Random(seed)
    load = PlayedLoad(
        LengthDistribution(rng.randint(30, 80), rng.choice(["fixed", "exponential"])),
        LengthDistribution(rng.randint(4, 40), "uniform", 0.2),
        rng.randint(5, 60),
        rng.choice([None, 0.5, 2, 5]),
        rng.choice([None, 3, 6]),
        seed=seed,
    )
    longest = max(prompt + answer for prompt, answer in load.lengths)
    pool = longest * rng.choice([3, 100])
    return load, SchedulingRules(rng.choice([1, 3, 8, 20]), rng.choice([24, 64, 256]), pool)


@pytest.mark.parametrize("seed", range(24))
def test_a_play_equals_the_exact_simulation(seed: int) -> None:
    """With blocks of one token; a request that comes within a step counts its wait for the step's end here only."""
    load, rules = random_load(seed)
    requests = [
        RequestSpec(index, prompt, answer, seconds, 0, 0)
        for index, ((prompt, answer), seconds) in enumerate(zip(load.lengths, load.arrivals, strict=True))
    ]
    limits = BatchLimits(rules.max_num_seqs, rules.max_num_batched_tokens, 1, int(rules.pool_tokens))
    simulated = simulate_requests(requests, limits, FullClock(), max_concurrency=load.max_concurrency)
    exact, played = simulated_figures(simulated), play(load, rules, FullClock())
    loose = 0.05 if simulated.num_preemptions else 0.001
    assert played.output_throughput == pytest.approx(exact.output_throughput, rel=loose)
    assert played.tpot is not None
    assert played.tpot.median == pytest.approx(exact.median_tpot_seconds, rel=loose)
    if load.requests_per_second is None:
        assert played.ttft.median == pytest.approx(exact.median_ttft_seconds, rel=loose)
    assert played.max_running == simulated.max_running
    assert (played.num_preemptions > 0) == (simulated.num_preemptions > 0)


def test_one_request_alone() -> None:
    played = play(users(1, 100, 3, rounds=1), ROOMY, FullClock())
    clock = FullClock()
    first = clock.seconds(100, 1, 1, 100, 100 * 101 / 2)
    later = clock.seconds(1, 1, 1, 101, 101.0), clock.seconds(1, 1, 1, 102, 102.0)
    assert played.ttft.median == pytest.approx(first)
    assert played.tpot is not None
    assert played.tpot.median == pytest.approx(sum(later) / 2, rel=1e-3)
    assert played.seconds == pytest.approx(first + sum(later), rel=1e-3)


def test_a_burst_waits_for_the_prompts_before_it() -> None:
    """Every prompt fills a step, so the k-th is read in the k-th step."""
    load = PlayedLoad(LengthDistribution(256), LengthDistribution(2), 10)
    played = play(load, ROOMY, FullClock())
    alone = play(replace(load, num_requests=1), ROOMY, FullClock())
    assert played.ttft.p99 > 9 * alone.ttft.p99
    assert alone.ttft.p99 < played.ttft.median < played.ttft.p99


def test_a_rate_near_capacity_queues_and_one_beyond_it_never_ends() -> None:
    load = PlayedLoad(LengthDistribution(64), LengthDistribution(16), 400)
    capacity = play(load, ROOMY, FullClock()).request_throughput
    waits = [
        play(replace(load, requests_per_second=share * capacity), ROOMY, FullClock()).ttft.p99
        for share in (0.3, 0.9, 2.0)
    ]
    assert waits[0] < waits[1] < waits[2]
    served = play(replace(load, requests_per_second=0.3 * capacity), ROOMY, FullClock()).request_throughput
    assert served == pytest.approx(0.3 * capacity, rel=0.15)


def test_prompts_first_gives_first_tokens_sooner_and_stalls_the_others() -> None:
    load = replace(STAGGERED, max_concurrency=8)
    mixed, first = (play(load, replace(ROOMY, prompts_first=flag), FullClock()) for flag in (False, True))
    assert first.ttft.mean < mixed.ttft.mean
    assert _tpot(first).p99 > _tpot(mixed).median


def test_a_full_pool_preempts_unless_answers_are_reserved() -> None:
    load, small = users(8, 60, 60), replace(ROOMY, pool_tokens=300)
    assert play(load, small, FullClock()).num_preemptions > 0
    reserved = play(load, replace(small, reserves=1.0), FullClock())
    assert (reserved.num_preemptions, reserved.max_running) == (0, 2)


def test_an_engine_that_looks_seldom_finds_a_request_at_its_next_look() -> None:
    """The second request comes while the first decodes in steps of a second each, of which every thirtieth looks."""
    load = PlayedLoad(LengthDistribution(10), LengthDistribution(1000), 2, requests_per_second=0.01)
    first, second = load.arrivals
    played = play(load, replace(ROOMY, recv_interval=30), EvenClock())
    looks = math.ceil((second - first - 1) / 30)
    waited = first + 1 + 30 * looks + 1 - second
    assert waited > 2
    assert played.ttft.mean == pytest.approx((1 + waited) / 2)
    assert play(load, ROOMY, EvenClock()).ttft.mean < 1.6


def test_a_step_composed_ahead_finds_a_request_one_step_later() -> None:
    load = STAGGERED
    at_once, ahead = (play(load, replace(ROOMY, schedules_ahead=flag), FullClock()) for flag in (False, True))
    assert ahead.ttft.mean > at_once.ttft.mean


@pytest.mark.parametrize("answer", [1, 2, 5])
def test_tokens_that_stream_late_come_a_step_later(answer: int) -> None:
    """And the last step has no token of its own; the next request is sent after it."""
    load = PlayedLoad(LengthDistribution(10), LengthDistribution(answer), 2, max_concurrency=1)
    at_once, late = (play(load, replace(ROOMY, streams_late=most), EvenClock()) for most in (0.0, math.inf))
    woken = play(load, replace(ROOMY, streams_late=0.25), EvenClock())
    assert (at_once.ttft.median, woken.ttft.median, late.ttft.median) == (1, 1.25, 2)
    assert (at_once.e2el.median, late.e2el.median) == (answer, answer + 1)
    assert (at_once.seconds, late.seconds) == (2 * answer, 2 * (answer + 1))
    assert at_once.tpot == late.tpot


def test_a_sequence_in_its_last_step_may_be_preempted() -> None:
    """All answers come to their ends where the pool is so small that sequences lose their tokens at any moment."""
    load, small = users(8, 20, 5), replace(ROOMY, streams_late=math.inf)
    for pool in range(30, 80):
        played = play(load, replace(small, pool_tokens=pool), FullClock())
        assert played.tpot is not None and played.e2el.p99 > played.ttft.p99


def test_a_prefix_in_the_cache_is_not_read_again() -> None:
    load = users(2, 200, 10)
    assert (
        play(replace(load, cached_tokens=160), ROOMY, FullClock()).ttft.median
        < play(load, ROOMY, FullClock()).ttft.median
    )


def test_lengths_have_the_mean_they_were_asked_for() -> None:
    for lengths in (
        LengthDistribution(200),
        LengthDistribution(200, "uniform", 0.5),
        LengthDistribution(200, "exponential"),
    ):
        assert mean(lengths.draw(2000, 0)) == pytest.approx(200, rel=0.01)
    spread = LengthDistribution(90, "uniform", 0.8).draw(500, 0)
    assert (min(spread), max(spread)) == (80, 100)
    assert median(LengthDistribution(200, "exponential").draw(2000, 0)) == pytest.approx(200 * math.log(2), rel=0.02)


def test_lengths_between_stated_quantiles() -> None:
    quantiles = ((0.0, 10.0), (0.5, 100.0), (0.9, 500.0))
    drawn = LengthDistribution(0.0, "quantiles", quantiles=quantiles, longest=300).draw(1000, 0)
    ordered = sorted(drawn)
    assert (ordered[250], ordered[500], ordered[600]) == (55, 100, pytest.approx(200, abs=1))
    assert max(drawn) == 300 and drawn.count(300) == pytest.approx(300, abs=2)
    assert set(LengthDistribution(0.0, "quantiles", quantiles=((0.0, 256.0),)).draw(50, 0)) == {256}


def test_rules_of_engines() -> None:
    filled = FilledSettings.of(
        ServingSettings(),
        gpu_memory_utilization=0.9,
        max_model_len=4096,
        max_num_batched_tokens=4096,
        max_num_seqs=256,
        block_size=16,
        device_memory_bytes=1,
        dtype="bfloat16",
        kv_cache_dtype="bfloat16",
    )
    first, now = (vllm_rules(filled, vllm_release(version), 1e6) for version in ("0.6.0", "0.14.0"))
    assert (first.prompts_first, first.chunks_prompts, first.schedules_ahead) == (True, False, False)
    assert (now.prompts_first, now.chunks_prompts, now.schedules_ahead) == (False, True, True)
    assert not vllm_rules(filled, vllm_release("0.13.0"), 1e6).schedules_ahead
    assert sglang_rules(8192, 1e6).prompts_first
    assert [sglang_rules(8192, 1e6, has_groups=each).reserves for each in (False, True)] == [0.7, pytest.approx(0.21)]
    assert not trtllm_rules(1e6).chunks_prompts
    two = now.over_groups(2)
    assert (two.max_num_seqs, two.max_num_batched_tokens, two.pool_tokens) == (256, 4096, 5e5)


def test_a_distribution() -> None:
    found = Distribution.of([float(value) for value in range(101)])
    assert (found.mean, found.median, found.p99) == (50, 50, 99)
    assert found.times(2).p99 == 198


def _tpot(played: PlayedFigures) -> Distribution:
    assert played.tpot is not None
    return played.tpot


def test_requests_arrive_at_the_rate_that_was_asked_for_however_few_they_are() -> None:
    load = PlayedLoad(LengthDistribution(10), LengthDistribution(10), 200, requests_per_second=4.0)
    gaps = [after - before for before, after in pairwise(load.arrivals)]
    assert len(gaps) / sum(gaps) == pytest.approx(4.0, rel=0.03)
    assert max(gaps) > 4 * sum(gaps) / len(gaps) and min(gaps) >= 0  # as of a Poisson process


def test_a_steady_rate_is_the_rate_that_was_asked_for_beside_those_in_progress() -> None:
    load = steady_rate(4.0, 100, 10, 10)
    coming = load.arrivals[load.num_warmups :]
    assert (len(coming) - 1) / (coming[-1] - coming[0]) == pytest.approx(4.0, rel=0.03)


class AskedClock(GroupSteps):
    """Notes what steps it is asked for."""

    def __init__(self) -> None:
        self.decoding: list[float] = []

    def step_of(self, num_met: float, num_tokens: float, num_sequences: float, num_sampled: float) -> AttendingStep:
        if num_tokens == num_sequences:
            self.decoding.append(num_sequences)
        return lambda kv_tokens, pairs: FullClock().seconds(
            int(num_tokens), int(num_sequences), int(num_sampled), int(kv_tokens), pairs
        )


def test_what_follows_from_the_number_of_sequences_is_computed_once() -> None:
    """Thousands of steps of a play that only decode differ in nothing but the tokens that they attend to."""
    clock = AskedClock()
    assert play(STAGGERED, ROOMY, clock) == play(STAGGERED, ROOMY, FullClock())
    assert sorted(clock.decoding) == [1, 2, 3, 4]
