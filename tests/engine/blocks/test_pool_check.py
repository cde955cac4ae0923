"""What check_pool says of a pool that was damaged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvplan_engine.blocks.block_pool import BlockPool, check_pool
from kvplan_engine.blocks.layout import uniform_layout

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
