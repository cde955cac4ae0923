"""The invariants of the pool of blocks, which hold between any two of its operations. Reads the pool's insides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import compress

from kvplan_engine.blocks.block_pool import BlockPool


def check_pool(pool: BlockPool, tables: Iterable[Sequence[int]] = ()) -> None:
    """Assert every invariant of ``pool``: AssertionError with what is wrong.

    tables: all block tables that hold references; without them that part is skipped.
    """
    counts, free_cached = pool._reference_counts, pool._free_cached
    assert sum(counts) == pool.num_references, "the sum of references is wrong"
    assert min(counts, default=0) >= 0, "negative reference count"
    used = list(compress(range(pool.num_blocks), counts))
    assert not any(first in free_cached or first in pool._free_uncached for first in used), "a used block is free"
    held = [block for first in (*used, *free_cached) for block in pool.blocks_of(first)]
    assert _are_all_others(pool, held), "blocks are lost or held twice"
    assert pool._bundles.keys() <= {*used, *free_cached}, "a free bundle without a hash"
    num_used = sum(len(pool.blocks_of(first)) for first in used)
    assert pool.num_free_blocks == pool.num_blocks - num_used, "the number of free blocks is wrong"
    _check_hashes(pool, used)
    tables = list(tables)
    if tables:
        _check_references(pool, tables)


def _are_all_others(pool: BlockPool, held: list[int]) -> bool:
    """Whether ``held`` are the blocks that are not free without a hash, each once.

    In an idle pool of 65,000 blocks those are few, so built-in functions alone go through the others: n different
    numbers from 0 on whose sum is 0 + 1 + ... + (n - 1) are these.
    """
    uncached, num_blocks = pool._free_uncached, pool.num_blocks
    differ = len(set(held)) == len(held) and not any(block in uncached for block in held)
    smallest = min(min(held, default=0), min(uncached, default=0))
    total = sum(held) + sum(uncached)
    is_all = len(held) + len(uncached) == num_blocks and total == num_blocks * (num_blocks - 1) // 2
    return differ and smallest >= 0 and is_all


def _check_hashes(pool: BlockPool, used: list[int]) -> None:
    by_block, by_hash = pool._hash_of_block, pool._block_of_hash
    assert by_block.keys() - set(used) == set(pool._free_cached), "a free block is in the wrong queue"
    assert len(by_hash) == len(by_block), "hash maps differ in size"
    for block, block_hash in by_block.items():
        assert by_hash[block_hash] == block, "hash maps disagree"


def _check_references(pool: BlockPool, tables: list[Sequence[int]]) -> None:
    holders = Counter(block for table in tables for block in table)
    counts = pool._reference_counts
    assert all(counts[block] == number for block, number in holders.items()), "reference counts != tables"
    assert pool.num_references == sum(holders.values()), "a reference is held by no block table"
