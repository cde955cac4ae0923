"""Routers by name: each rule worked out by hand on replicas that say what they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from kvplan.errors import UsageError
from kvplan.fleet.requests import FleetRequest, TokenRun
from kvplan.fleet.routers.dynamo import KvRouter
from kvplan.fleet.routers.in_turn import DataParallelBalancer
from kvplan.fleet.routers.interface import Router
from kvplan.fleet.routers.llm_d import LlmD, LlmDPrecise
from kvplan.fleet.routers.named import ROUTERS, ReplicaSizes, check_router, make_router
from kvplan.fleet.routers.own import OwnRouter
from kvplan.fleet.routers.prefixes import PrefixMemory
from kvplan.fleet.routers.production_stack import PrefixAware
from kvplan.fleet.routers.sglang import CacheAware

SIZES = ReplicaSizes(block_size=16, num_blocks=1000, num_seats=8)


@dataclass
class Stand:
    """A replica that is in a state. cached: tokens that it would find of any prompt."""

    index: int
    num_running: int = 0
    num_waiting: int = 0
    num_waiting_tokens: int = 0
    kv_usage: float = 0.0
    cached: int = 0
    now: float = 0.0
    got: list[int] = field(default_factory=list)

    def match(self, request: FleetRequest) -> int:
        return min(self.cached, request.num_prompt_tokens - 1)


def prompt(*ids: int, sent: float = 0.0, tokens: int = 512) -> FleetRequest:
    """A prompt of runs of ``tokens``."""
    runs = tuple(TokenRun(key, (place + 1) * tokens) for place, key in enumerate(ids))
    return FleetRequest(0, sent, len(ids) * tokens, 10, runs)


def sent(router: Router, replicas: Sequence[Stand], *requests: FleetRequest) -> list[int]:
    return [replicas[router.choose(each, replicas)].index for each in requests]


@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_sends_to_a_replica_that_is_there(name: str) -> None:
    router, replicas = make_router(name, SIZES), [Stand(3), Stand(5), Stand(9)]
    assert set(sent(router, replicas, *(prompt(each) for each in range(30)))) <= {3, 5, 9}
    assert set(sent(router, replicas[1:], *(prompt(each) for each in range(30)))) <= {5, 9}


def test_a_router_is_named_as_people_write_it() -> None:
    assert check_router("LLM_D") == "llm-d"
    with pytest.raises(UsageError, match="Unknown --router 'nginx'"):
        check_router("nginx")


def test_a_memory_knows_prefixes_up_to_where_they_agree() -> None:
    memory = PrefixMemory()
    memory.remember(prompt(1, 2, 3))
    assert [memory.match(prompt(*ids)) for ids in ((1, 2, 3), (1, 2, 9), (9, 2, 3), (1, 2, 3, 4))] == [
        1536, 1024, 0, 1536,
    ]  # fmt: skip


def test_a_memory_knows_a_chat_as_far_as_its_longest_prompt() -> None:
    memory = PrefixMemory()
    memory.remember(FleetRequest(0, 0.0, 100, 10, (TokenRun(7, 100),)))
    assert memory.match(FleetRequest(1, 0.0, 300, 10, (TokenRun(7, 300),))) == 100
    assert memory.match(FleetRequest(2, 0.0, 60, 10, (TokenRun(7, 60),))) == 60


def test_a_memory_forgets_what_was_used_longest_ago_and_deepest_first() -> None:
    memory = PrefixMemory(most_tokens=2048)
    for ids in ((1, 2, 3), (8,), (1,), (9,)):
        memory.remember(prompt(*ids))
    assert memory.num_tokens == 2048
    assert memory.match(prompt(1, 2, 3)) == 1024
    assert memory.match(prompt(8)) == memory.match(prompt(9)) == 512


def test_vllm_counts_waiting_requests_more_where_the_cache_is_full() -> None:
    full, empty = Stand(0, num_running=4, num_waiting=2, kv_usage=1.0), Stand(1, num_running=9)
    assert sent(DataParallelBalancer(), [full, empty], prompt(1)) == [1]  # 6 + 2 x 6 x 0.5 = 12 beside 9
    full.kv_usage = 0.5
    assert sent(DataParallelBalancer(), [full, empty], prompt(1)) == [0]
    assert sent(DataParallelBalancer(), [Stand(0), Stand(1)], *[prompt(1)] * 4) == [0, 1, 0, 1]


def test_llm_d_weighs_prefix_three_and_queue_and_cache_two_each() -> None:
    replicas = [Stand(0), Stand(1)]
    router = LlmD(16, 100_000)
    first = sent(router, replicas, prompt(1, 2))[0]
    here, there = replicas[first], replicas[1 - first]
    here.num_waiting = 1  # 3 x 1 + 0 + 2 beside 0 + 2 + 2
    assert sent(router, replicas, prompt(1, 2)) == [first]
    here.kv_usage = 0.6  # 3 + 0 + 0.8
    assert sent(router, replicas, prompt(1, 2)) == [1 - first]
    assert there.num_waiting == 0


def test_llm_d_sees_no_more_than_256_blocks_of_a_prompt() -> None:
    router, replicas = LlmD(16, 100_000), [Stand(0), Stand(1)]
    first = sent(router, replicas, prompt(*range(20)))[0]
    replicas[first].num_waiting = 1
    replicas[first].kv_usage = 0.49  # 3 + 1.02 beside 4: all that is seen of it, 4,096 tokens, was sent there
    assert sent(router, replicas, prompt(*range(8), 77, 78, 79)) == [first]


def test_llm_d_by_events_goes_to_the_engine_that_has_the_most() -> None:
    replicas = [Stand(0, cached=160, num_waiting=3), Stand(1, num_waiting=3), Stand(2, cached=64)]
    # 2 x 1 + 0 + 1, 0 + 0 + 1, 2 x 0.4 + 1 + 1
    assert sent(LlmDPrecise(), replicas, prompt(1)) == [0]
    replicas[2].cached = 96  # 2 x 0.6 + 1 + 1
    assert sent(LlmDPrecise(), replicas, prompt(1)) == [2]


def test_sglang_follows_a_prefix_until_loads_differ() -> None:
    router, replicas = CacheAware(), [Stand(0, num_running=1), Stand(1)]
    assert sent(router, replicas, prompt(1, 2, 3)) == [1]
    replicas[1].num_running = 60
    assert sent(router, replicas, prompt(1, 2, 9)) == [1]  # two thirds known there
    assert sent(router, replicas, prompt(1, 7, 8, 9)) == [0]  # a quarter
    replicas[1].num_running = 66
    assert sent(router, replicas, prompt(1, 2, 3)) == [0]  # 66 - 1 > 64, and 66 > 1.5


def test_sglang_prefers_the_replica_that_was_sent_the_prefix_last() -> None:
    router, replicas = CacheAware(), [Stand(0), Stand(1, num_running=70)]
    sent(router, replicas, prompt(1, 2))
    replicas[0].num_running, replicas[1].num_running = 70, 0
    sent(router, replicas, prompt(1, 2))
    replicas[0].num_running = 0
    assert sent(router, replicas, prompt(1, 2)) == [1]


def test_dynamo_adds_blocks_to_compute_and_blocks_that_are_held() -> None:
    # 32 blocks of prompt: (512 - 256 + 0) / 16 + 0.05 x 1000 beside 512 / 16 + 30
    replicas = [Stand(0, cached=256, kv_usage=0.05), Stand(1, kv_usage=0.03)]
    assert sent(KvRouter(16, 1000), replicas, prompt(1)) == [1]
    replicas[0].kv_usage = 0.04
    assert sent(KvRouter(16, 1000), replicas, prompt(1)) == [0]
    replicas[0].num_waiting_tokens = 80  # five blocks twice: to be computed, and to be held
    assert sent(KvRouter(16, 1000), replicas, prompt(1)) == [1]


def test_production_stack_looks_at_no_load() -> None:
    router, replicas = PrefixAware(), [Stand(0), Stand(1)]
    first = sent(router, replicas, prompt(1, 2))[0]
    replicas[first].num_running, replicas[first].kv_usage = 500, 1.0
    assert set(sent(router, replicas, *[prompt(1, 2)] * 10)) == {first}


def test_the_own_router_follows_a_prefix_for_a_sixteenth_of_its_tokens_in_sequences() -> None:
    router, replicas = OwnRouter(16, 1000, 200), [Stand(0), Stand(1)]
    assert sent(router, replicas, prompt(1, 2)) == [0]
    # 1,024 tokens, of which the last block is computed: 1,008 / 16 = 63 sequences more cost as much
    replicas[0].num_running = 62
    assert sent(router, replicas, prompt(1, 2)) == [0]
    replicas[0].num_running = 63
    assert sent(router, replicas, prompt(1, 2)) == [1]


def test_the_own_router_counts_those_that_would_wait_fourfold() -> None:
    replicas = [Stand(0, num_running=8), Stand(1, num_running=7, num_waiting_tokens=120)]
    # no seat on the first: 32 x (8 + 3) beside 120 + 32 x 7
    assert sent(OwnRouter(16, 1000, 8), replicas, prompt(1)) == [1]
