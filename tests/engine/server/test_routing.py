"""Which engine gets a request: prefixes against load, over engines that really cache and evict."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import Any

import pytest
from small_models import VOCAB_SIZE
from tiny_configs import llama_config

from kvplan_engine import LLM, SamplingParams
from kvplan_engine.server.engine_client.routing import EngineLoad, PrefixMemory, Route, Router, prefix_chain
from kvplan_engine.server.engine_process.loading import pool_facts
from kvplan_engine.server.messages import PoolFacts

BLOCK = 16
PREFIX = list(range(8 * BLOCK))
CONFIG: dict[str, Any] = {
    "enable_prefix_caching": True,
    "kv_reservation": "paged",
    "kv_host_cache_bytes": 0,
    "kv_disk_cache_bytes": 0,
}
MODEL = llama_config(vocab_size=VOCAB_SIZE, max_position_embeddings=256)


def facts(num_blocks: int = 100, **config: Any) -> PoolFacts:
    return PoolFacts(CONFIG | config, 256, 8, num_blocks, BLOCK, 1024, {})


def load(num_sequences: int = 0, queued: int = 0, tokens: int = 0, seats: int = 256, free: int = 10**6) -> EngineLoad:
    return EngineLoad(num_sequences, queued, tokens, seats, free)


def router(num_engines: int = 2, **config: Any) -> Router:
    made = Router(num_engines)
    for number in range(num_engines):
        made.use_pool(number, facts(**config))
    return made


def sent(router: Router, prompt: list[int], *loads: EngineLoad, salt: str = "") -> Route:
    return router.route(prompt, 1, dict(enumerate(loads or (load(), load()))), salt)


# ---- digests


def test_a_chain_does_not_depend_on_where_it_was_cut() -> None:
    tokens = list(range(100))
    whole = prefix_chain(tokens, BLOCK)
    assert len(whole.digests) == 6 and whole.rest == tuple(range(96, 100))
    for cut in (0, 1, 15, 16, 17, 99, 100):
        assert prefix_chain(tokens[:cut], BLOCK).extended(tokens[cut:]) == whole
    assert prefix_chain(tokens, BLOCK, "sql").digests[0] != whole.digests[0]
    assert prefix_chain([7, *tokens], BLOCK).digests[1] != prefix_chain(tokens, BLOCK).digests[1]


def test_a_memory_forgets_what_was_used_longest_ago_and_ends_before_beginnings() -> None:
    memory = PrefixMemory(8)
    first, second, third = (prefix_chain([start] * 64, BLOCK).digests for start in (1, 2, 3))
    memory.remember(first)
    memory.remember(second)
    memory.remember(first)
    memory.remember(third)
    assert [memory.num_matched(each) for each in (first, second, third)] == [4, 0, 4]
    memory.remember(prefix_chain([4] * 32, BLOCK).digests)
    assert [memory.num_matched(each) for each in (first, third)] == [2, 4]
    assert len(memory) == 8


# ---- one request after the other


def test_a_prompt_goes_where_its_prefix_is_and_others_where_less_is() -> None:
    routes = router()
    assert sent(routes, [*PREFIX, 1]).engine == 0
    assert sent(routes, [300] * 40).engine == 1
    again = sent(routes, [*PREFIX, 2])
    assert (again.engine, again.num_new_tokens) == (0, 1)
    assert sent(routes, [300] * 40).engine == 1


def test_adapters_have_prefixes_of_their_own() -> None:
    routes = router()
    assert sent(routes, [*PREFIX, 1], salt="sql").engine == 0
    assert sent(routes, [*PREFIX, 1], salt="chat").engine == 1
    assert sent(routes, [*PREFIX, 1], salt="sql").num_new_tokens == 1


def test_an_engine_that_was_chosen_gets_the_request() -> None:
    routes = router()
    sent(routes, [*PREFIX, 1])
    chosen = routes.route([*PREFIX, 1], 1, {1: load(50)})
    assert (chosen.engine, chosen.num_new_tokens) == (1, len(PREFIX) + 1)
    assert routes.route([*PREFIX, 1], 1, {1: load(50)}).num_new_tokens == 1


def test_the_last_token_is_always_computed() -> None:
    routes = router()
    sent(routes, PREFIX)
    assert sent(routes, PREFIX).num_new_tokens == BLOCK


def test_the_next_turn_goes_where_the_answer_was_given() -> None:
    """Though the first prompt is shorter than a block, and the other engine has less to do."""
    routes = router()
    question, answer = [1, 2, 3], list(range(200, 300))
    routes.answered(sent(routes, question), answer)
    turn = sent(routes, [*question, *answer, 7], load(2), load(0))
    assert (turn.engine, turn.num_new_tokens) == (0, 104 - 96)


def test_a_new_pool_and_an_emptied_cache_hold_nothing() -> None:
    routes = router()
    sent(routes, [*PREFIX, 1])
    routes.use_pool(0, facts())
    assert sent(routes, [*PREFIX, 1]).num_new_tokens == len(PREFIX) + 1
    for number in range(2):
        routes.forget(number)
    assert sent(routes, [*PREFIX, 1]).num_new_tokens == len(PREFIX) + 1


def test_an_answer_from_before_a_new_block_size_is_not_remembered() -> None:
    routes = router()
    before = sent(routes, [*PREFIX, 1])
    for number in range(2):
        routes.use_pool(number, PoolFacts(CONFIG, 256, 8, 50, 32, 2048, {}))
    routes.answered(before, list(range(100)))
    assert sent(routes, [*PREFIX, 1]).num_new_tokens == len(PREFIX) + 1


# ---- load


def test_a_prefix_is_followed_until_the_engine_has_too_much_to_do() -> None:
    """As the module says: n tokens for n / 16 sequences."""
    for more, engine in ((len(PREFIX) // 16 - 1, 0), (len(PREFIX) // 16, 1)):
        routes = router()
        sent(routes, [*PREFIX, 1])
        assert sent(routes, [*PREFIX, 1], load(more), load(0)).engine == engine


def test_without_a_prefix_the_least_loaded_engine_is_taken() -> None:
    for loads, engine in (
        ((load(3), load(2)), 1),
        ((load(2, 1, 500), load(4)), 1),
        ((load(2, seats=2), load(4)), 1),
        ((load(2, free=10), load(4)), 1),
        ((load(1), load(4, 3)), 0),
    ):
        assert sent(router(), list(range(200, 240)), *loads).engine == engine, loads


@pytest.mark.parametrize("config", [{"enable_prefix_caching": False}, {"kv_reservation": "contiguous"}])
def test_without_a_prefix_cache_only_load_counts(config: dict[str, Any]) -> None:
    routes = router(**config)
    for _ in range(2):
        route = sent(routes, [*PREFIX, 1], load(1), load(0))
        assert (route.engine, route.chain) == (1, None)


def test_one_shared_prompt_spreads_over_the_engines_as_load_grows() -> None:
    """64 requests that stay: none of the engines gets all, and the prompt is computed once by each."""
    routes, counts, computed = router(), [0, 0], 0
    for number in range(64):
        route = sent(routes, [*PREFIX, number], *(load(count) for count in counts))
        counts[route.engine] += 1
        computed += route.num_new_tokens
    assert abs(counts[0] - counts[1]) <= len(PREFIX) // BLOCK
    assert computed == 64 + 2 * len(PREFIX)


# ---- engines that cache and evict


def _engine(stack: ExitStack, num_prefixes: int) -> LLM:
    """With blocks for ``num_prefixes`` prompts and the ends of some, and no tensors."""
    settings: dict[str, Any] = {
        "device": "cpu",
        "load_format": "none",
        "max_num_seqs": 2,
        "max_num_batched_tokens": 256,
    }
    with LLM(MODEL, device_memory="1GiB", **settings) as whole:
        memory = whole.engine.memory
    spared = (memory.num_blocks - num_prefixes * len(PREFIX) // BLOCK - 6) * memory.block_bytes
    share = (memory.budget_bytes - spared) / memory.device_total_bytes
    return stack.enter_context(LLM(MODEL, device_memory="1GiB", gpu_memory_utilization=share, **settings))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Twelve of each of 8 shared beginnings, in random order, each with an end of its own."""
    draw = random.Random(7)
    shared = [[draw.randrange(VOCAB_SIZE) for _ in PREFIX] for _ in range(8)]
    order = [number for number in range(8) for _ in range(12)]
    draw.shuffle(order)
    return [[*shared[number], *(draw.randrange(VOCAB_SIZE) for _ in range(10))] for number in order]


def _hit_rate(engines: list[LLM], prompts: list[list[int]], choose: Any) -> float:
    """Of prompt tokens, one request after the other."""
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    num_cached = 0
    for number, prompt in enumerate(prompts):
        (output,) = engines[choose(number, prompt)].generate([{"prompt_token_ids": prompt}], params)
        num_cached += output.num_cached_tokens
    return num_cached / sum(map(len, prompts))


def test_two_engines_find_as_much_as_one_of_twice_the_size(prompts: list[list[int]]) -> None:
    """Each has room for four of the eight prompts: in turns each would need all."""
    with ExitStack() as stack:
        whole = _hit_rate([_engine(stack, 8)], prompts, lambda *_: 0)
        in_turns = _hit_rate([_engine(stack, 4) for _ in range(2)], prompts, lambda number, _: number % 2)
        halves = [_engine(stack, 4) for _ in range(2)]
        routes = Router(2)
        for number, engine in enumerate(halves):
            routes.use_pool(number, pool_facts(engine.engine))
        routed = _hit_rate(halves, prompts, lambda _, prompt: sent(routes, prompt).engine)
    assert whole == pytest.approx((96 - 8) * len(PREFIX) / (96 * (len(PREFIX) + 10)))
    assert routed == whole
    assert in_turns < 0.7 * routed
