"""Who owns which block: exact orders, and a state machine that does everything at random."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvplan_engine.blocks.block_pool import BlockPool, NoFreeBlocks, check_pool
from kvplan_engine.blocks.block_table import BlockTable, FoundBundles
from kvplan_engine.blocks.layout import uniform_layout
from kvplan_engine.blocks.prefix_cache import PrefixCache


def test_uncached_blocks_are_reused_last_in_first_out_and_cached_ones_least_recently_used_first() -> None:
    pool = BlockPool(6, uniform_layout(4))
    first, second = pool.allocate(2), pool.allocate(2)
    assert (first, second) == ([0, 1], [2, 3])
    pool.cache(0, b"head")
    pool.cache(1, b"tail")
    pool.free(first)
    pool.free(second)
    # 2 (freed last, uncached), 3, the two never used, then the cached sequence, deepest block first
    assert pool.allocate(6) == [2, 3, 4, 5, 1, 0]
    assert pool.num_evictions == 2
    assert pool.find(b"head") is None


def test_prefix_lookup_leaves_the_last_token_to_compute() -> None:
    pool = BlockPool(8, uniform_layout(4))
    cache = PrefixCache(pool)
    tokens = list(range(8))
    hashes: list[bytes] = []
    cache.extend_hashes(hashes, tokens, 8)
    table = BlockTable(pool)
    table.reserve(0, 8)
    cache.register(table, hashes, 0, 2)
    assert cache.lookup(cache.usable_hashes(hashes, tokens)).found == [FoundBundles(0, [0])]
    assert cache.lookup(cache.usable_hashes(hashes, [*tokens, 8])).found == [FoundBundles(0, [0, 1])]


def test_hashes_differ_by_salt_and_by_everything_before() -> None:
    pool = BlockPool(1, uniform_layout(2))
    a: list[bytes] = []
    b: list[bytes] = []
    c: list[bytes] = []
    PrefixCache(pool, salt=b"a").extend_hashes(a, [1, 2, 3, 4], 4)
    PrefixCache(pool, salt=b"b").extend_hashes(b, [1, 2, 3, 4], 4)
    PrefixCache(pool, salt=b"a").extend_hashes(c, [9, 2, 3, 4], 4)
    assert len({*a, *b, *c}) == 6


class BlockMachine(RuleBasedStateMachine):
    """Sequences that start, grow, fork, hit the cache and end at random; every invariant after every move."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12, uniform_layout(4))
        self.cache = PrefixCache(self.pool)
        self.tables: list[tuple[BlockTable, list[int]]] = []

    def _register(self, table: BlockTable, tokens: list[int]) -> None:
        hashes: list[bytes] = []
        self.cache.extend_hashes(hashes, tokens, len(tokens))
        self.cache.register(table, hashes, 0, len(hashes))

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20))
    def start(self, tokens: list[int]) -> None:
        hashes: list[bytes] = []
        table = BlockTable(self.pool)
        match = self.cache.lookup(self.cache.usable_hashes(hashes, tokens))
        table.adopt(match.found, match.num_blocks)
        try:
            assert table.reserve(match.num_blocks * 4, len(tokens)) == []
        except NoFreeBlocks:
            table.release()
            return
        self._register(table, tokens)
        self.tables.append((table, list(tokens)))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), token=st.integers(0, 1), count=st.integers(1, 6))
    def grow(self, data: st.DataObject, token: int, count: int) -> None:
        table, tokens = data.draw(st.sampled_from(self.tables))
        before, free = list(table.blocks), self.pool.num_free_blocks
        expected = table.num_new_blocks(len(tokens), len(tokens) + count)
        try:
            table.reserve(len(tokens), len(tokens) + count)
        except NoFreeBlocks:
            assert expected > free
            assert table.blocks == before
            return
        assert len(table) == -(-(len(tokens) + count) // 4)
        written = table.blocks[len(tokens) // 4 :]
        assert all(self.pool.reference_count(block) == 1 for block in written), "a shared block would be written"
        tokens.extend([token] * count)
        self._register(table, tokens)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        table, tokens = data.draw(st.sampled_from(self.tables))
        self.tables.append((table.fork(), list(tokens)))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        table, _ = self.tables.pop(index)
        table.release()

    @invariant()
    def nothing_is_lost(self) -> None:
        check_pool(self.pool, [table.blocks for table, _ in self.tables] or [[]])
        if not self.tables:
            assert self.pool.num_free_blocks == 12


TestBlockMachine = BlockMachine.TestCase
TestBlockMachine.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


NUM_BLOCKS = 9


def lose_a_block(pool: BlockPool, used: list[int]) -> None:
    pool._free_uncached.popitem()


def free_what_is_used(pool: BlockPool, used: list[int]) -> None:
    pool._free_uncached[used[0]] = None


def cache_what_is_used(pool: BlockPool, used: list[int]) -> None:
    pool._free_cached[used[0]] = None


def hold_a_block_beyond_the_last(pool: BlockPool, used: list[int]) -> None:
    pool._free_uncached.popitem()
    pool._free_uncached[NUM_BLOCKS] = None


def hold_foreign_blocks_of_the_same_sum(pool: BlockPool, used: list[int]) -> None:
    first, second = pool._free_uncached.popitem()[0], pool._free_uncached.popitem()[0]
    pool._free_uncached |= {first - NUM_BLOCKS: None, second + NUM_BLOCKS: None}


def count_below_zero(pool: BlockPool, used: list[int]) -> None:
    pool._reference_counts[used[0]] += 1
    pool._reference_counts[next(iter(pool._free_uncached))] = -1


def count_once_more(pool: BlockPool, used: list[int]) -> None:
    pool._reference_counts[used[0]] += 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_a_block, "lost or held twice"),
        (free_what_is_used, "a used block is free"),
        (cache_what_is_used, "a used block is free"),
        (hold_a_block_beyond_the_last, "lost or held twice"),
        (hold_foreign_blocks_of_the_same_sum, "lost or held twice"),
        (count_below_zero, "negative reference count"),
        (count_once_more, "the sum of references"),
    ],
)
def test_damage_is_found(damage: Callable[[BlockPool, list[int]], None], message: str) -> None:
    pool = BlockPool(NUM_BLOCKS, uniform_layout(4))
    used = pool.allocate(3)
    check_pool(pool, [used])
    damage(pool, used)
    with pytest.raises(AssertionError, match=message):
        check_pool(pool, [used])
