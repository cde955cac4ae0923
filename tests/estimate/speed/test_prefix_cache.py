"""Prompts that begin with what was computed before: played against the block-exact simulation and against caches that
evict what was not used for longest, and in closed form against the play."""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import replace

import pytest

from kvplan.estimate.speed.queueing.figures import PlayedFigures
from kvplan.estimate.speed.queueing.loads import LengthDistribution, PlayedLoad, Think, steady_users
from kvplan.estimate.speed.queueing.play import play
from kvplan.estimate.speed.queueing.prefix_cache import Cached, Chat, PrefixCache
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.queueing.sharing import ExpectedHits, PromptSharing
from kvplan.estimate.speed.simulation.batching import simulate_requests
from kvplan.estimate.speed.simulation.figures import simulated_figures
from kvplan.estimate.speed.simulation.interface import BatchLimits
from kvplan.workload.requests import RequestSpec

ROOMY = SchedulingRules(max_num_seqs=64, max_num_batched_tokens=256, pool_tokens=1e9)


class Clock:
    """Steps whose length depends on everything a step is told; counts tokens of prompts, of each chunk all but one."""

    def __init__(self) -> None:
        self.num_read = 0

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        self.num_read += num_tokens - num_sequences
        return 0.01 + 1e-4 * (num_tokens + 3 * num_sequences + 0.01 * num_kv_tokens + 0.001 * num_pairs)


class MetClock(Clock):
    """Of groups that take their steps together."""

    def seconds_beside(self, num_met: float, *of_group: float) -> float:
        return self.seconds(*of_group)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(6))
def test_a_play_with_shared_prefixes_equals_the_exact_simulation(seed: int) -> None:
    """Whole blocks are found, once somebody has computed all of the prefix, and held once."""
    rng = random.Random(seed)
    sharing = PromptSharing(rng.choice([37, 64, 150]), num_prefixes=rng.choice([1, 3]))
    lengths = (
        LengthDistribution(rng.randint(30, 80), "uniform", 0.5),
        LengthDistribution(rng.randint(4, 40), "uniform", 0.2),
    )
    load = PlayedLoad(*lengths, 40, max_concurrency=rng.choice([None, 3, 6]), seed=seed, sharing=sharing)
    block = rng.choice([1, 16])
    rules = replace(ROOMY, max_num_seqs=rng.choice([3, 8, 20]), hit_tokens=block)
    chats = random.Random(seed)
    requests = [
        RequestSpec(
            index,
            sharing.prefix_tokens + prompt,
            answer,
            0.0,
            chats.randrange(sharing.num_prefixes),
            sharing.prefix_tokens,
        )
        for index, (prompt, answer) in enumerate(load.lengths)
    ]
    limits = BatchLimits(rules.max_num_seqs, rules.max_num_batched_tokens, block, 100_000)
    simulated = simulate_requests(requests, limits, Clock(), max_concurrency=load.max_concurrency)
    exact, played = simulated_figures(simulated), play(load, rules, Clock())
    assert played.output_throughput == pytest.approx(exact.output_throughput, rel=0.001)
    assert played.ttft.median == pytest.approx(exact.median_ttft_seconds, rel=0.001)
    assert played.tpot is not None
    assert played.tpot.median == pytest.approx(exact.median_tpot_seconds, rel=0.001)


def test_a_shared_prefix_is_held_once() -> None:
    """A pool for the prefix and eight answers runs eight; without a cache it reads two at most."""
    load = PlayedLoad(
        LengthDistribution(10), LengthDistribution(20), 40, max_concurrency=8, sharing=PromptSharing(1000)
    )
    small = replace(ROOMY, pool_tokens=1000 + 8 * 30)
    shared, alone = (play(load, replace(small, hit_tokens=unit), Clock()) for unit in (1, 0))
    assert shared.max_running == 8
    assert shared.num_preemptions <= 1, "of one that began before the prefix was computed"
    assert alone.max_running <= 2


@pytest.mark.parametrize(("unit", "computed"), [(1, 1), (16, 16), (7, 100 - 98), (0, 100)])
def test_the_last_token_of_a_prompt_is_always_computed_and_so_is_its_block(unit: int, computed: int) -> None:
    """Of a prompt of 100 tokens that is found whole: vLLM looks for 99 of them, in whole blocks."""
    sharing = PromptSharing(112)  # longer than the prompt, so that all of it is in the cache
    cache = PrefixCache(sharing, 1e6, unit)
    if unit:
        first = Cached(Chat(1, 0, 0, 112))
        cache.take(first)
        cache.computed(first, 112)
    second = Cached(Chat(2, 0, 0, 112))
    cache.find(second, 100, 112)
    assert 100 - second.found == {16: 4, 7: 2}.get(unit, computed)


def test_what_a_drafter_needs_is_computed_again() -> None:
    sharing = PromptSharing(hit_rate=0.5)
    found = Cached(Chat(1, 0, 0, 0))
    PrefixCache(sharing, 1e6, 16).find(found, 1600, 0)
    assert found.found == 800


def test_what_was_let_go_first_makes_room_first_and_its_end_before_its_beginning() -> None:
    cache = PrefixCache(PromptSharing(turns=9), 1000, 10)
    chats = [Chat(number, 0, 0, 0) for number in range(3)]
    for chat in chats:  # three chats of 300 tokens fit beside nothing
        each = Cached(chat)
        cache.take(each)
        cache.leave(each, 300, 0)

    def found(chat: Chat, held: float) -> int:
        each = Cached(chat)
        cache.find(each, 10_000, held)
        return each.found

    assert [found(chat, 0) for chat in chats] == [300, 300, 300]
    assert [found(chat, 250) for chat in chats] == [150, 300, 300]
    assert [found(chat, 600) for chat in chats] == [0, 100, 300]


def _share_read(load: PlayedLoad, rules: SchedulingRules) -> float:
    """Of all tokens of prompts, those that are computed."""
    clock = Clock()
    play(load, rules, clock)
    plain = Clock()
    play(load, replace(rules, hit_tokens=0), plain)
    return clock.num_read / plain.num_read


@pytest.mark.parametrize(
    ("num_prefixes", "pool"), [(1, 3_000), (10, 8_000), (100, 3_000), (100, 8_000), (100, 20_000), (100, 200_000)]
)
def test_the_closed_form_finds_as_much_as_a_play(num_prefixes: int, pool: int) -> None:
    """From pools that hold a few of 100 prefixes beside 8 requests to those that hold all and 200 answers more."""
    sharing = PromptSharing(200, num_prefixes)
    load = replace(steady_users(8, 60, 30), num_requests=800, num_cooldowns=8, sharing=sharing)
    rules = replace(ROOMY, pool_tokens=pool)
    played = 1 - _share_read(load, rules)
    expected = ExpectedHits(sharing, pool, 1, 60, 30).found(8, 1.0) / (200 + 60)
    assert expected == pytest.approx(played, abs=0.05)


def test_a_pool_too_small_for_all_prefixes_finds_fewer() -> None:
    sharing = PromptSharing(200, 100)
    found = [ExpectedHits(sharing, pool, 1, 60, 30).found(8, 1.0) for pool in (3e3, 8e3, 2e4, 1e6)]
    assert found == sorted(found)
    assert found[0] < 40 and found[-1] == pytest.approx(200)


def _least_recently_used(sizes: dict[int, int], room: int, uses: list[int]) -> float:
    """The share of ``uses`` that a cache of ``room`` finds."""
    kept: OrderedDict[int, int] = OrderedDict()
    hits = 0
    for key in uses:
        hits += key in kept
        kept[key] = sizes[key]
        kept.move_to_end(key)
        while sum(kept.values()) > room:
            kept.popitem(last=False)
    return hits / len(uses)


def test_the_approximation_is_that_of_caches_with_equal_popularity() -> None:
    """Where nothing else is in the pool, K prefixes of which it holds k are found k times out of K."""
    rng = random.Random(1)
    exact = _least_recently_used(dict.fromkeys(range(50), 100), 2000, [rng.randrange(50) for _ in range(8_000)])
    expected = ExpectedHits(PromptSharing(100, 50), 2000, 1, 1e-6, 1e-6).found(0.0, 1.0) / 100
    assert expected == pytest.approx(exact, abs=0.01) and exact == pytest.approx(0.4, abs=0.01)


def _figures_of_turns(turns: int, unit: int, pool: float = 1e9) -> PlayedFigures:
    load = PlayedLoad(
        LengthDistribution(50), LengthDistribution(20), 60, think=Think(0.1, 1), sharing=PromptSharing(turns=turns)
    )
    return play(load, replace(ROOMY, hit_tokens=unit, pool_tokens=pool), Clock())


def test_each_turn_reads_only_what_is_new() -> None:
    """One user alone: every prompt but the first has the turns before, and finds all of them but the last token."""
    clock = Clock()
    load = PlayedLoad(
        LengthDistribution(50), LengthDistribution(20), 60, think=Think(0.1, 1), sharing=PromptSharing(turns=3)
    )
    play(load, ROOMY, clock)
    assert clock.num_read == 20 * (49 + 50 + 50), "a turn's message and the last token before it, less one"
    plain = Clock()
    play(load, replace(ROOMY, hit_tokens=0), plain)
    assert plain.num_read == 20 * (49 + 119 + 189)
    assert _figures_of_turns(3, 1).ttft.mean < _figures_of_turns(3, 0).ttft.mean


@pytest.mark.parametrize("pool", [5_000, 12_000, 100_000])
def test_chats_are_found_as_often_as_the_closed_form_says(pool: int) -> None:
    sharing, think, users = PromptSharing(turns=5), 2.0, 40
    load = replace(
        steady_users(8, 60, 30), num_requests=1500, max_concurrency=None, think=Think(think, users), sharing=sharing
    )
    rules = replace(ROOMY, pool_tokens=pool)
    clock = Clock()
    figures = play(load, rules, clock)
    latency = figures.e2el.mean
    in_progress = users * latency / (latency + think)
    hits = ExpectedHits(sharing, pool, 1, 60, 30, think)
    read = clock.num_read / 1500 + 1
    prompt = sharing.prompt_tokens(60, 30)
    assert (prompt - hits.found(in_progress, latency)) / prompt == pytest.approx(read / prompt, abs=0.08)


def test_a_hit_rate_is_taken_as_given_and_each_holds_its_own() -> None:
    sharing = PromptSharing(hit_rate=0.8)
    load = replace(steady_users(8, 100, 30), num_requests=400, sharing=sharing)
    assert _share_read(load, ROOMY) == pytest.approx(0.2, abs=0.01)
    full = replace(ROOMY, pool_tokens=4 * 135)
    assert play(load, full, Clock()).max_running < 7
    assert ExpectedHits(sharing, 1e9, 16, 100, 30).found(8, 1.0) == 80


def test_a_chat_comes_back_to_one_of_the_data_parallel_groups() -> None:
    """Whichever has the fewest requests, as vLLM chooses: of two groups every other turn finds nothing."""
    sharing, think = PromptSharing(turns=5), Think(2.0, 40)
    load = replace(steady_users(8, 60, 30), num_requests=300, max_concurrency=None, think=think, sharing=sharing)
    ttft = [
        play(load, replace(ROOMY, pool_tokens=1e6, hit_tokens=unit).over_groups(2, in_step=True), MetClock()).ttft.mean
        for unit in (1, 0)
    ]
    assert ttft[0] < ttft[1]
    one, two = (ExpectedHits(sharing, 5e5, 1, 60, 30, 2.0, num_groups=count).found(8, 1.0) for count in (1, 2))
    assert two == pytest.approx(one / 2, rel=0.02)
