"""Caches of layers that keep windows or states, replayed by requests and block by block."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from random_traces import blocks_of, branching_trace, chat_trace

from kvplan.fleet.requests import FleetRequest, TokenRun
from kvplan.fleet.tiers.chains import Chain, chains_of
from kvplan.fleet.tiers.distances import reuse_distances
from kvplan.fleet.tiers.replayed import Weights, replayed_hits

TRACES = [*(branching_trace(seed) for seed in range(4)), *(chat_trace(seed) for seed in range(3))]


class PlainHybrid:
    """Every unit and every end by itself, least recently used; a unit or an end is evicted whole."""

    def __init__(self, num_blocks: int, weights: Weights) -> None:
        self._num_blocks, self._weights = num_blocks, weights
        self._kept: OrderedDict[object, int] = OrderedDict()

    def hits(self, chain: Chain, number: int) -> int:
        names = blocks_of(chain, number)
        reach = 0
        while reach < chain.most_hit_blocks and names[reach] in self._kept:
            reach += 1
        found = max((place for place in range(1, reach + 1) if ("end", names[place - 1]) in self._kept), default=0)
        for name in reversed(names):
            self._put(name, self._weights.unit)
        for place in sorted({found, reach, chain.most_hit_blocks} - {0}, reverse=True):
            self._put(("end", names[place - 1]), self._weights.end)
        while sum(self._kept.values()) > self._num_blocks:
            self._kept.popitem(last=False)
        return found

    def _put(self, name: object, weight: int) -> None:
        self._kept[name] = weight
        self._kept.move_to_end(name)


@pytest.mark.parametrize("weights", [Weights(1, 4), Weights(3, 1), Weights(2, 20)])
@pytest.mark.parametrize("trace", range(len(TRACES)))
def test_requests_find_what_block_by_block_is_found(trace: int, weights: Weights) -> None:
    chains = chains_of(TRACES[trace], 8)
    for num_blocks in (20, 60, 150, 400, 10**6):
        cache = PlainHybrid(num_blocks, weights)
        assert replayed_hits(chains, weights, num_blocks) == [
            cache.hits(chain, number) for number, chain in enumerate(chains)
        ]


@pytest.mark.parametrize("trace", range(len(TRACES)))
def test_without_windows_a_replay_finds_what_one_pass_finds(trace: int) -> None:
    chains = chains_of(TRACES[trace], 8)
    found = reuse_distances(chains)
    for num_blocks in (1, 5, 17, 50, 120, 300, 1000):
        assert replayed_hits(chains, Weights(1, 0), num_blocks) == found.hits_by_request(num_blocks)
        assert replayed_hits(chains, Weights(3, 0), 3 * num_blocks) == found.hits_by_request(num_blocks)


def test_the_second_of_those_that_begin_alike_finds_no_end_and_the_third_does() -> None:
    """What two prompts share ends where neither of them could resume: the second one's lookup has an end kept there."""
    requests = [FleetRequest(number, 0.0, 96, 1, (TokenRun(1, 48), TokenRun(10 + number, 96))) for number in range(3)]
    chains = chains_of(requests, 16)
    assert replayed_hits(chains, Weights(1, 2), 1000) == [0, 0, 3]
    assert replayed_hits(chains, Weights(1, 0), 1000) == [0, 3, 3]


def test_the_same_prompt_again_resumes_at_its_last_boundary() -> None:
    twice = [FleetRequest(number, 0.0, 100, 1, (TokenRun(1, 100),)) for number in range(2)]
    assert replayed_hits(chains_of(twice, 16), Weights(1, 2), 1000) == [0, 6]
