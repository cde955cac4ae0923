"""Data-parallel groups that share their experts: a play of them beside one written out step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import mean

import pytest
from step_clocks import PromptClock

from kvplan.estimate.speed.queueing.front_end import FrontEnd
from kvplan.estimate.speed.queueing.loads import LengthDistribution, PlayedLoad, steady_users
from kvplan.estimate.speed.queueing.play import play
from kvplan.estimate.speed.queueing.replicas import Router, play_replicas
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.steady import PromptReading, PromptsRead, SharedSteps, steady_state

STEP, TOKEN, MET = 0.01, 1e-4, 1e-5
BUDGET = 512


def step_seconds(fullest: float, met: float) -> float:
    return STEP + TOKEN * fullest + MET * met


class Clock:
    """By the tokens of the fullest group, and by those of all groups."""

    def seconds(self, *of_group: float) -> float:
        return self.seconds_beside(of_group[0], *of_group)

    def seconds_beside(self, num_met: float, *of_group: float) -> float:
        return step_seconds(of_group[0], num_met)


@dataclass
class Request:
    """left: of the prompt, and of the answer."""

    sent: float
    prompt_left: int
    answer_left: int
    answer: int
    first: float = 0.0


def by_hand(load: PlayedLoad, num_groups: int) -> tuple[float, float, float]:
    """Mean TTFT, mean TPOT and requests per second of users who follow one another, step after step."""
    groups: list[list[Request]] = [[] for _ in range(num_groups)]
    waiting, now = iter(load.lengths), 0.0
    ttfts, tpots = [], []

    def send(count: int, lengths: Iterator[tuple[int, int]]) -> None:
        for _ in range(count):
            prompt, answer = next(lengths, (0, 0))
            if prompt:
                min(groups, key=len).append(Request(now, prompt, answer, answer))

    send(load.max_concurrency or 0, waiting)
    while any(groups):
        computed = []
        for group in groups:
            budget = BUDGET - sum(not each.prompt_left for each in group)
            computed.append(len(group) and BUDGET - budget)
            for each in group:
                chunk = min(each.prompt_left, budget)
                if not each.prompt_left:
                    each.answer_left -= 1
                elif chunk:
                    each.prompt_left, budget, computed[-1] = (
                        each.prompt_left - chunk,
                        budget - chunk,
                        computed[-1] + chunk,
                    )
                    each.answer_left -= not each.prompt_left
        now += step_seconds(max(computed), sum(computed))
        ended = 0
        for group in groups:
            for each in list(group):
                if each.answer_left == each.answer - 1 and not each.first:
                    each.first = now
                    ttfts.append(now - each.sent)
                if not each.answer_left:
                    tpots.append((now - each.first) / (each.answer - 1))
                    group.remove(each)
                    ended += 1
        send(ended, waiting)
    return mean(ttfts), mean(tpots), len(ttfts) / now


def rules(num_groups: int, *, in_step: bool = True) -> SchedulingRules:
    return SchedulingRules(256, BUDGET, 1e9).over_groups(num_groups, in_step=in_step)


def load_of(num_users: int, prompt: int, answer: int) -> PlayedLoad:
    lengths = LengthDistribution(prompt, "uniform", 0.5), LengthDistribution(answer, "uniform", 0.5)
    return PlayedLoad(*lengths, 6 * num_users + 60, max_concurrency=num_users)


LOADS = [(1, 2000, 50), (4, 300, 50), (6, 2000, 20), (24, 100, 100), (24, 4000, 50), (64, 300, 100), (64, 2000, 100)]


@pytest.mark.parametrize("num_groups", [2, 4, 8])
@pytest.mark.parametrize(("num_users", "prompt", "answer"), LOADS)
def test_a_play_of_groups_is_what_happens_step_by_step(
    num_users: int, prompt: int, answer: int, num_groups: int
) -> None:
    load = load_of(num_users, prompt, answer)
    ttft, tpot, rate = by_hand(load, num_groups)
    played = play(load, rules(num_groups), Clock())
    assert played.tpot is not None
    assert played.ttft.mean == pytest.approx(ttft, rel=0.001)
    assert played.tpot.mean == pytest.approx(tpot, rel=0.001)
    assert played.request_throughput == pytest.approx(rate, rel=0.001)


@pytest.mark.parametrize("num_groups", [2, 4, 8])
@pytest.mark.parametrize(("num_users", "prompt", "answer"), LOADS)
def test_the_closed_form_says_what_the_play_does(num_users: int, prompt: int, answer: int, num_groups: int) -> None:
    in_fullest = -(-num_users // num_groups)

    def reading(read: PromptsRead) -> float:
        return step_seconds(in_fullest + read.in_fullest * prompt, num_users + read.in_all * prompt)

    steps = SharedSteps(step_seconds(in_fullest, num_users), reading, num_together=num_groups)
    found = steady_state(steps, PromptReading(prompt / (BUDGET - in_fullest)), num_users, answer)
    load = steady_users(num_users, prompt, answer, found.reading_share)
    played = play(replace(load, num_requests=6 * num_users + 120), rules(num_groups), Clock())
    assert played.tpot is not None
    assert found.tpot_seconds == pytest.approx(played.tpot.mean, rel=0.15)
    assert found.requests_per_second == pytest.approx(num_users / played.e2el.mean, rel=0.15)
    assert played.ttft.mean / 1.5 < found.ttft_seconds < 1.5 * played.ttft.mean


def test_one_group_reads_and_all_wait() -> None:
    """Prompts that come one after the other are read no sooner by four groups, and stop those of the other three."""
    load = load_of(4, 2000, 50)
    together, apart = (play(load, rules(4, in_step=each), Clock()) for each in (True, False))
    assert together.tpot is not None and apart.tpot is not None
    assert apart.tpot.mean == pytest.approx(step_seconds(1, 1), rel=0.01)  # a user each
    assert together.tpot.mean > 2 * apart.tpot.mean


def test_groups_without_experts_are_engines_of_their_own() -> None:
    load, four = load_of(32, 300, 50), rules(4, in_step=False)
    alone = play(load.shared_by(4), four.alone(4), Clock())
    assert play(load, four, Clock()).output_throughput == pytest.approx(4 * alone.output_throughput)


@pytest.mark.parametrize("servers", [1, 4])
def test_one_user_of_four_engines_waits_for_no_other(servers: int) -> None:
    front_end, one = FrontEnd(request_seconds=0.01, servers=servers), load_of(1, 300, 50)
    four = replace(rules(4, in_step=False), front_end=front_end)
    single = play(one, replace(rules(1), front_end=replace(front_end, servers=1)), Clock())
    assert play(one, four, Clock()).ttft == single.ttft
    assert play(one, four, Clock()).output_throughput == single.output_throughput


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
