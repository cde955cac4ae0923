"""What a tier brings: seconds saved and spent, signs that people measured, splits over replicas, settings to paste."""

from __future__ import annotations

import itertools

import pytest
from random_traces import branching_trace

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.fleet.requests import FleetRequest, TokenRun
from kvplan.fleet.tiers.curves import cache_curve
from kvplan.fleet.tiers.layouts import CacheLayout
from kvplan.fleet.tiers.replayed import Weights
from kvplan.fleet.tiers.splits import split_requests
from kvplan.fleet.tiers.worth import PrefillTime, TierLink, TierMeasure, TierWorth, break_even_tokens, host_link
from kvplan.units import GIB

_TOKEN_BYTES = 131_072
_BLOCK = 16


class SteadyClock:
    """25 us for each token, as an 8B model takes on an H100; a step costs nothing by itself."""

    def seconds(self, num_tokens: float, *_: float) -> float:
        return 25e-6 * num_tokens

    def seconds_beside(self, _num_met: float, num_tokens: float, *rest: float) -> float:
        return self.seconds(num_tokens, *rest)


def _layout(pool_gib: float, *, num_ranks: int = 1, copies: int = 1) -> CacheLayout:
    block = _BLOCK * _TOKEN_BYTES
    return CacheLayout(
        "bfloat16", _BLOCK, 0, Weights(1, 0), int(pool_gib * GIB) // block, block, block // copies, num_ranks
    )


def _worth(requests: list[FleetRequest], pool_gib: float, host_gib: float) -> TierWorth:
    layout = _layout(pool_gib)
    pool = cache_curve([requests], layout)
    below = cache_curve([requests], layout, keeps_answers=False)
    link = TierLink("host memory", 44.8e9, False, "as LMCache's log has it")
    measure = TierMeasure(below, tuple(pool.hits(layout.num_blocks)), link, PrefillTime(SteadyClock(), 8192))
    return measure.worth(int(host_gib * GIB))


def _documents(total_gib: float, rounds: int = 3, tokens: int = 16_384) -> list[FleetRequest]:
    """Documents of so many GiB of KV together, read one after the other, and again."""
    count = round(total_gib * GIB / _TOKEN_BYTES / tokens)
    order = itertools.chain.from_iterable(range(count) for _ in range(rounds))
    return [FleetRequest(n, float(n), tokens, 1, (TokenRun(key, tokens),)) for n, key in enumerate(order)]


def _agents(live_gib: float, num_agents: int = 14, steps: int = 10) -> list[FleetRequest]:
    """Agents in turn, each prompt the one before and a little more; the last prompts are ``live_gib`` together."""
    longest = round(live_gib * GIB / _TOKEN_BYTES / num_agents)
    lengths = [round(longest * (0.9 + 0.1 * (turn + 1) / steps)) for turn in range(steps)]
    return [
        FleetRequest(n, float(n), length, 1, (TokenRun(agent, length),))
        for n, (length, agent) in enumerate(itertools.product(lengths, range(num_agents)))
    ]


@pytest.mark.parametrize(("host_gib", "ttft_ms"), [(40, -33.3), (20, 27.8), (10, 23.6)])
def test_a_tier_below_what_is_live_harms(host_gib: int, ttft_ms: float) -> None:
    """LMCache pull request 4499: 14 agents with 36.7 GiB live at once, and the change of TTFT where all is stored."""
    found = _worth(_agents(36.7), pool_gib=8, host_gib=host_gib)
    assert found.verdict == ("pays" if ttft_ms < 0 else "harms")


def test_the_model_whose_pool_holds_the_working_set_gains_nothing() -> None:
    """LMCache issue 1241: on one machine TTFT fell by 70 % for one model and rose by 27 % for another; they differ in
    how many tokens the GPU holds."""
    requests = _documents(20)
    assert _worth(requests, pool_gib=10, host_gib=30).verdict == "pays"
    in_pool = _worth(requests, pool_gib=25, host_gib=30)
    assert in_pool.verdict == "harms" and in_pool.num_extra_tokens == 0 and in_pool.store_seconds > 0


def test_a_tier_of_a_third_of_the_working_set_finds_nothing() -> None:
    """LMCache issue 2641 asks of 50 GB for 150 GB of KV that come again in turn."""
    assert _worth(_documents(150), pool_gib=8, host_gib=50).num_extra_tokens == 0
    assert _worth(_documents(150), pool_gib=8, host_gib=160).verdict == "pays"


def test_seconds_are_those_of_the_tokens() -> None:
    """Two documents of 16,384 tokens, each read three times: the pool holds neither, host memory both."""
    found = _worth(_documents(4), pool_gib=2, host_gib=5)
    hits = 4 * 16_368  # the last block has the last token, which is computed
    assert found.num_extra_tokens == found.num_tokens == hits
    assert found.saved_seconds == pytest.approx(25e-6 * hits)
    assert found.load_seconds == pytest.approx(_TOKEN_BYTES * hits / 44.8e9)
    assert found.store_seconds == pytest.approx(_TOKEN_BYTES * (6 * 16_384 - hits) / 44.8e9)
    assert found.net_seconds == found.saved_seconds - found.load_seconds


def test_ranks_load_their_parts_at_once_and_drives_are_shared() -> None:
    bus, drive = TierLink("host memory", 50e9, False, ""), TierLink("NVMe", 5e9, True, "")
    divided, alike = _layout(10, num_ranks=4), _layout(10, num_ranks=4, copies=4)
    assert bus.load_seconds(1000, divided) == pytest.approx(1000 * _TOKEN_BYTES / 4 / 50e9)
    assert bus.load_seconds(1000, alike) == bus.load_seconds(1000, divided)
    assert bus.store_seconds(1000, alike) == pytest.approx(1000 * _TOKEN_BYTES / 16 / 50e9)
    assert drive.load_seconds(1000, divided) == pytest.approx(1000 * _TOKEN_BYTES / 5e9)


def test_a_bus_is_taken_for_seven_tenths_of_its_data_sheet() -> None:
    assert host_link(find_gpu("h100"), None).bytes_per_second == pytest.approx(0.7 * 64e9)
    assert host_link(find_gpu("h100"), 30e9).bytes_per_second == 30e9


def test_prefill_is_summed_over_steps_with_growing_pairs() -> None:
    class PairClock(SteadyClock):
        def seconds_beside(self, _num_met: float, num_tokens: float, *rest: float) -> float:
            return rest[2] + rest[3]  # tokens that are read, and pairs

    time = PrefillTime(PairClock(), 4)
    assert time.seconds(4) == 10 + 4
    assert time.seconds(8) == 36 + 4 + 8
    assert time.seconds(6) == (time.seconds(4) + time.seconds(8)) / 2
    assert time.seconds(0) == 0


def test_the_break_even_is_where_loading_gets_shorter() -> None:
    assert break_even_tokens(lambda n: n * n, lambda n: 100.5 * n, 1000) == 101
    assert break_even_tokens(lambda n: n, lambda n: 0.5 * n, 1000) == 1
    assert break_even_tokens(lambda n: n, lambda n: 2 * n, 1000) is None


def test_splits_lose_no_request_and_keep_prefixes_together() -> None:
    requests = branching_trace(4, count=200)
    for rule in ("round-robin", "prefix"):
        split = split_requests(requests, 4, rule)
        assert sorted(each.number for part in split for each in part) == list(range(200))
    assert split_requests(requests, 4, "shared") == [requests]
    layout = _layout(1)
    by_turn, by_prefix = (
        sum(hit.num_tokens for hit in cache_curve(split_requests(requests, 4, rule), layout).hits(10_000))
        for rule in ("round-robin", "prefix")
    )
    assert by_prefix > by_turn
