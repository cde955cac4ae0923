"""One pass finds what caches of every size find, replayed block by block: also of layers with windows or states."""

from __future__ import annotations

from collections import OrderedDict
from itertools import product

import pytest
from random_traces import blocks_of, branching_trace, chat_trace
from random_traces import replayed_hits as blockwise_hits

from kvplan.fleet.requests import FleetRequest, TokenRun
from kvplan.fleet.tiers.chains import Chain, chains_of
from kvplan.fleet.tiers.curves import next_uses
from kvplan.fleet.tiers.distances import reuse_distances
from kvplan.fleet.tiers.replayed import Weights, replayed_hits

TRACES = [*(branching_trace(seed) for seed in range(6)), *(chat_trace(seed) for seed in range(4))]


@pytest.mark.parametrize("keeps_answers", [False, True])
@pytest.mark.parametrize("block_tokens", [5, 16])
@pytest.mark.parametrize("trace", range(len(TRACES)))
def test_one_pass_finds_what_a_replay_of_any_size_finds(trace: int, block_tokens: int, keeps_answers: bool) -> None:
    chains = chains_of(TRACES[trace], block_tokens, keeps_answers=keeps_answers)
    found = reuse_distances(chains)
    longest = max(chain.num_blocks for chain in chains)
    for num_blocks in (1, 3, longest, 2 * longest, 97, 200, found.num_distinct - 1, found.num_distinct, 10**6):
        replayed = blockwise_hits(chains, num_blocks)
        assert found.hits_by_request(num_blocks) == replayed
        assert found.num_hits(num_blocks) == sum(replayed)
    assert found.num_hits(found.num_distinct) == found.num_reused


@pytest.mark.parametrize("trace", range(len(TRACES)))
def test_distinct_blocks_are_those_with_different_names(trace: int) -> None:
    chains = chains_of(TRACES[trace], 16)
    names = {name for number, chain in enumerate(chains) for name in blocks_of(chain, number)}
    assert reuse_distances(chains).num_distinct == len(names)


def test_the_last_token_is_always_computed() -> None:
    """Two equal prompts of whole blocks: the last block is found and computed all the same."""
    twice = [FleetRequest(number, 0.0, 64, 1, (TokenRun(7, 64),)) for number in range(2)]
    assert reuse_distances(chains_of(twice, 16)).hits_by_request(100) == [0, 3]


def test_a_block_belongs_to_the_run_that_holds_its_last_token() -> None:
    """40 shared tokens are two blocks of 16; the third block holds other tokens, too."""
    requests = [FleetRequest(number, 0.0, 100, 1, (TokenRun(1, 40), TokenRun(10 + number, 100))) for number in range(2)]
    assert reuse_distances(chains_of(requests, 16)).hits_by_request(100) == [0, 2]


def test_an_answer_takes_room_and_its_last_token_none() -> None:
    (chain,) = chains_of([FleetRequest(0, 0.0, 20, 13, (TokenRun(1, 20),))], 16)
    assert (chain.num_prompt_blocks, chain.num_blocks) == (1, 2)
    (chain,) = chains_of([FleetRequest(0, 0.0, 20, 12, (TokenRun(1, 20),))], 16)
    assert chain.num_blocks == 1


def _most_hits(chains: list[Chain], num_blocks: int) -> int:
    """By trying all that may be kept after each request."""
    named = [blocks_of(chain, number) for number, chain in enumerate(chains)]
    states: dict[frozenset[object], int] = {frozenset(): 0}
    for chain, names in zip(chains, named, strict=True):
        following: dict[frozenset[object], int] = {}
        for kept, hits in states.items():
            found = 0
            while found < chain.most_hit_blocks and names[found] in kept:
                found += 1
            at_hand = list(kept | set(names))
            for chosen in product((False, True), repeat=len(at_hand)):
                if sum(chosen) <= num_blocks:
                    state = frozenset(name for name, keeps in zip(at_hand, chosen, strict=True) if keeps)
                    following[state] = max(following.get(state, 0), hits + found)
        states = following
    return max(states.values())


@pytest.mark.parametrize(("seed", "num_blocks"), [(1, 1), (1, 2), (2, 2), (3, 3), (4, 2)])
def test_the_bound_is_the_most_that_any_choice_finds(seed: int, num_blocks: int) -> None:
    requests = branching_trace(seed, count=9, branches=2, run_tokens=4)
    short = [request for request in requests if request.num_prompt_tokens <= 13]
    chains = chains_of(short, 4, keeps_answers=False)
    assert next_uses(chains).num_hits(num_blocks) == _most_hits(chains, num_blocks)


@pytest.mark.parametrize("trace", range(len(TRACES)))
def test_the_bound_is_no_less_than_what_is_found(trace: int) -> None:
    chains = chains_of(TRACES[trace], 16)
    found, best = reuse_distances(chains), next_uses(chains)
    for num_blocks in (0, 1, 7, 30, 80, 200, 500):
        assert best.num_hits(num_blocks) >= found.num_hits(num_blocks)
    assert best.num_hits(10**9) == found.num_reused


FEWER_TRACES = [*(branching_trace(seed) for seed in range(4)), *(chat_trace(seed) for seed in range(3))]


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
@pytest.mark.parametrize("trace", range(len(FEWER_TRACES)))
def test_requests_find_what_block_by_block_is_found(trace: int, weights: Weights) -> None:
    chains = chains_of(FEWER_TRACES[trace], 8)
    for num_blocks in (20, 60, 150, 400, 10**6):
        cache = PlainHybrid(num_blocks, weights)
        assert replayed_hits(chains, weights, num_blocks) == [
            cache.hits(chain, number) for number, chain in enumerate(chains)
        ]


@pytest.mark.parametrize("trace", range(len(FEWER_TRACES)))
def test_without_windows_a_replay_finds_what_one_pass_finds(trace: int) -> None:
    chains = chains_of(FEWER_TRACES[trace], 8)
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
