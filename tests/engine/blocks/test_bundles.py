"""Bundles of several blocks, and tables over groups of layers: windows, chunks and states."""

from __future__ import annotations

import pytest

from kvplan_engine.blocks.block_pool import BlockPool, NoFreeBlocks, check_pool
from kvplan_engine.blocks.block_table import BlockCopy, BlockTable, FoundBundles, grow_each, num_blocks_to_start
from kvplan_engine.blocks.layout import KvGroup, KvLayout
from kvplan_engine.blocks.prefix_cache import PrefixCache
from kvplan_engine.description.mixers import FULL, STATE, Kept

WINDOW = Kept("window", 6)


def pool_of(num_blocks: int, *groups: tuple[Kept, int]) -> BlockPool:
    """Blocks of 4 tokens for groups of (what they keep, width)."""
    return BlockPool(num_blocks, KvLayout(1, 4, tuple(KvGroup(kept, width, 1, {}) for kept, width in groups)))


def bundles_of(table: BlockTable) -> list[tuple[int, list[int]]]:
    return [(each.first, each.bundles) for each in table.groups]


def test_any_free_blocks_make_a_bundle() -> None:
    pool = pool_of(6, (FULL, 2))
    singles = pool.allocate(6)
    pool.free([singles[1], singles[4]])
    assert pool.allocate_bundles(1, 2) == [1]
    assert pool.blocks_of(1) == (1, 4)
    assert pool.num_free_blocks == 0


def test_a_bundle_with_a_hash_stays_together_and_its_eviction_frees_all_its_blocks() -> None:
    pool = pool_of(6, (FULL, 3))
    first, second = pool.allocate_bundles(2, 3)
    pool.cache(first, b"first")
    pool.free([first, second])
    assert (pool.num_free_blocks, pool.num_free_cached_blocks, pool.num_cached_blocks) == (6, 3, 3)
    evicted: list[tuple[int, ...]] = []
    pool.on_evict = lambda bundle, _: evicted.append(pool.blocks_of(bundle))
    assert pool.allocate(3) == [3, 4, 5]  # what has no hash goes first
    (block,) = pool.allocate(1)
    assert (block, evicted) == (0, [(0, 1, 2)])
    assert pool.num_free_blocks == 2  # the rest of the bundle
    assert pool.find(b"first") is None
    check_pool(pool, [[3, 4, 5, 0]])


def test_a_cached_bundle_comes_back_whole() -> None:
    pool = pool_of(4, (FULL, 3))
    (bundle,) = pool.allocate_bundles(1, 3)
    pool.cache(bundle, b"name")
    pool.free([bundle])
    assert pool.num_free_blocks == 4
    pool.share([bundle])
    assert pool.num_free_blocks == 1
    with pytest.raises(NoFreeBlocks):
        pool.allocate_bundles(1, 2)
    check_pool(pool, [[bundle]])


def test_forgetting_what_is_cached_makes_blocks_of_bundles() -> None:
    pool = pool_of(4, (FULL, 2))
    bundles = pool.allocate_bundles(2, 2)
    for number, bundle in enumerate(bundles):
        pool.cache(bundle, bytes([number]))
    pool.free(bundles)
    pool.forget_cached()
    check_pool(pool, [[]])
    assert (pool.num_cached_blocks, pool.num_free_blocks, pool.num_evictions) == (0, 4, 0)


def test_a_window_gives_back_what_the_next_token_does_not_see() -> None:
    pool = pool_of(30, (FULL, 1), (WINDOW, 2))
    table = BlockTable(pool)
    table.reserve(0, 13)
    assert [len(each.bundles) for each in table.groups] == [4, 4]
    # token 13 sees 8 to 13: blocks 0 and 1 are not needed any more
    table.reserve(13, 17)
    assert [(each.first, len(each.bundles)) for each in table.groups] == [(0, 5), (2, 3)]
    assert pool.num_used_blocks == 5 + 2 * 3 == pool.layout.blocks_held(13, 17)
    assert len(table) == 5
    check_pool(pool, [table.all_bundles])
    table.release()
    assert pool.num_used_blocks == pool.num_logical_blocks == 0


def test_growing_by_a_block_takes_a_bundle_of_each_group_of_tokens() -> None:
    pool = pool_of(20, (FULL, 1), (WINDOW, 2), (STATE, 3))
    tables = [BlockTable(pool), BlockTable(pool)]
    for table in tables:
        table.reserve(0, 4)
    assert pool.num_used_blocks == 2 * (1 + 2 + 3)
    grow_each(pool, tables)
    assert pool.num_used_blocks == 2 * (2 + 4 + 3)
    assert [len(each.bundles) for each in tables[1].groups] == [2, 2, 1]
    assert len(tables[1]) == 2


def test_a_fork_copies_partly_filled_bundles_and_states_block_by_block() -> None:
    pool = pool_of(20, (FULL, 1), (WINDOW, 2), (STATE, 2))
    parent = BlockTable(pool)
    parent.reserve(0, 6)  # full 0 1, window (2 3) (4 5), state (6 7)
    child = parent.fork()
    assert child.num_new_blocks(6, 7) == 1 + 2 + 2
    copies = child.reserve(6, 7)
    assert copies == [BlockCopy(1, 8), BlockCopy(4, 9), BlockCopy(5, 10), BlockCopy(6, 11), BlockCopy(7, 12)]
    assert bundles_of(parent) == [(0, [0, 1]), (0, [2, 4]), (0, [6])]
    assert bundles_of(child) == [(0, [0, 8]), (0, [2, 9]), (0, [11])]
    assert parent.reserve(6, 7) == []
    check_pool(pool, [parent.all_bundles, child.all_bundles])


def test_too_few_blocks_leave_a_table_as_it_is() -> None:
    pool = pool_of(8, (FULL, 1), (WINDOW, 3))
    table = BlockTable(pool)
    table.reserve(0, 8)
    with pytest.raises(NoFreeBlocks):
        table.reserve(8, 9)  # the window still needs both of its bundles
    assert [len(each.bundles) for each in table.groups] == [2, 2]


def test_a_cached_state_is_copied_where_there_is_room_and_taken_over_where_there_is_none() -> None:
    for num_blocks in (4, 3):
        pool = pool_of(num_blocks, (FULL, 1), (STATE, 1))
        table = BlockTable(pool)
        table.reserve(0, 4)
        state = table.groups[1].bundles[0]
        pool.cache(state, b"state")
        copies = table.reserve(4, 5)
        if num_blocks == 4:
            assert copies == [BlockCopy(state, table.groups[1].bundles[0])]
            assert pool.find(b"state") == state
            assert pool.num_free_cached_blocks == 1
        else:
            assert (copies, table.groups[1].bundles) == ([], [state])
            assert pool.find(b"state") is None
        check_pool(pool, [table.all_bundles])


def test_a_reserved_window_moves_over_the_same_blocks() -> None:
    pool = pool_of(20, (FULL, 1), (WINDOW, 1))
    table, numbers = BlockTable(pool), pool.layout.most_bundles(20, 4)
    assert numbers == [5, 3]
    table.hold(numbers, 5, 0)
    before = list(table.groups[1].bundles)
    table.hold(numbers, 5, 13)  # token 8 is the first that is seen
    assert table.groups[1].first == 2
    assert sorted(table.groups[1].bundles) == sorted(before)
    assert table.groups[1].bundles[0] == before[2]  # block 2 has not moved
    assert pool.num_used_blocks == 8


# ---- prefixes


def cached(pool: BlockPool, num_tokens: int, *, states_after: tuple[int, ...] = ()) -> tuple[PrefixCache, list[bytes]]:
    """Everything of a sequence 0, 1, 2 ... is cached, and its states after so many tokens."""
    cache, hashes, table = PrefixCache(pool), list[bytes](), BlockTable(pool)
    tokens = list(range(num_tokens))
    cache.extend_hashes(hashes, tokens, num_tokens)
    computed = 0
    for end in (*states_after, num_tokens):
        table.reserve(computed, end)
        cache.register(table, hashes, computed // 4, end // 4)
        computed = end
        if end in states_after:
            cache.register_states(table, hashes[end // 4 - 1])
    table.leave_behind(computed)
    table.release()
    return cache, hashes


def test_names_of_bundles_differ_by_group() -> None:
    pool = pool_of(30, (FULL, 1), (WINDOW, 2))
    _, hashes = cached(pool, 8)
    names = {pool.find(name + bytes([group])) for name in hashes for group in (0, 1)}
    assert len(names) == 4
    assert {len(name) for name in hashes} == {15}


def test_a_window_needs_its_last_blocks_in_a_row() -> None:
    pool = pool_of(60, (FULL, 1), (WINDOW, 2))
    cache, hashes = cached(pool, 24)
    assert cache.lookup(hashes).num_blocks == 6
    match = cache.lookup(hashes[:5])
    # the token behind 20 sees 15 to 20: blocks 3 and 4
    assert [(each.first, len(each.bundles)) for each in match.found] == [(0, 5), (3, 2)]
    pool.uncache(pool.find(hashes[4] + b"\x01") or 0)
    assert cache.lookup(hashes).num_blocks == 4  # behind 4 blocks it needs 2 and 3, behind 6 it lacks 4
    pool.uncache(pool.find(hashes[1] + b"\x00") or 0)
    assert cache.lookup(hashes).num_blocks == 1


def test_a_chunk_needs_the_blocks_from_its_own_start() -> None:
    pool = pool_of(60, (FULL, 1), (Kept("chunk", 8), 1))
    cache, hashes = cached(pool, 24)
    assert [(each.first, len(each.bundles)) for each in cache.lookup(hashes[:5]).found] == [(0, 5), (4, 1)]
    assert [(each.first, len(each.bundles)) for each in cache.lookup(hashes[:4]).found] == [(0, 4), (4, 0)]


def test_a_state_is_found_at_its_boundary_alone() -> None:
    pool = pool_of(60, (FULL, 1), (STATE, 3))
    cache, hashes = cached(pool, 24, states_after=(12,))
    match = cache.lookup(hashes)
    assert match.num_blocks == 3
    assert [(each.first, len(each.bundles)) for each in match.found] == [(0, 3), (0, 1)]
    assert cache.lookup(hashes[:2]).num_blocks == 0


def test_what_is_elsewhere_counts_and_is_named() -> None:
    pool = pool_of(60, (FULL, 1), (WINDOW, 2))
    cache, hashes = cached(pool, 24)
    gone = hashes[2] + b"\x01"
    pool.uncache(pool.find(gone) or 0)
    assert cache.lookup(hashes[:4]).num_blocks == 2
    match = cache.lookup(hashes[:4], lambda name: name == gone)
    assert (match.num_blocks, match.missing) == (4, [gone])
    assert match.found[1] == FoundBundles(2, [None, pool.find(hashes[3] + b"\x01")])


def test_adopting_a_prefix_shares_what_is_there_and_takes_what_is_not() -> None:
    pool = pool_of(60, (FULL, 1), (WINDOW, 2))
    cache, hashes = cached(pool, 24)
    gone = hashes[3] + b"\x01"
    pool.uncache(pool.find(gone) or 0)
    match = cache.lookup(hashes[:5], lambda name: name == gone)
    needed = num_blocks_to_start(pool, match.found, pool.layout.blocks_held(20, 22))
    before, table = pool.num_free_blocks, BlockTable(pool)
    taken = table.adopt(match.found, match.num_blocks)
    assert taken == [table.groups[1].bundles[0]]
    table.reserve(20, 22)
    assert before - pool.num_free_blocks == needed == 6 + 2 * 3
    table.check(20)
