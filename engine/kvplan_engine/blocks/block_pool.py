"""The pool of KV blocks: who holds which block, and which one is handed out next. No tensors, no torch.

    free queues    uncached, last freed first    then    cached, least recently used first, deepest block first
                   ^ taken from this end                 a cached block that is looked up again leaves in O(1)
A block is free when nobody references it. A free block may still hold KV that is worth finding again (prefix
cache): it keeps its hash until it is handed out for something else.

Where a group of layers takes several blocks for one logical block, these are a *bundle*, whichever blocks they are:

    allocate(2 bundles, width 3)  ->  [7, 2]      blocks_of(7) = (7, 1, 4)    blocks_of(2) = (2, 9, 3)
A bundle is known by its first block, which has the references, the hash and the generation of all. A free bundle that
is cached stays together; evicting it, or freeing one without a hash, makes blocks of it again.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import compress

from kvplan_engine.blocks.layout import KvLayout

BlockHash = bytes


class NoFreeBlocks(Exception):
    """Raised by :meth:`BlockPool.allocate` when fewer blocks are free than asked for. Nothing was taken."""


class BlockPool:
    """Reference counts and the free queue of ``num_blocks`` blocks, which ``layout`` says how to fill.

    Where it says "block" below, a bundle's first block stands for the bundle.
    num_logical_blocks: the sum over all tables of how many logical blocks they reach, kept by the tables.
    """

    def __init__(self, num_blocks: int, layout: KvLayout) -> None:
        self.num_blocks = num_blocks
        self.layout = layout
        self.block_size = layout.block_size
        self.on_evict: Callable[[int, BlockHash], None] | None = None  # called with a cached block and its hash
        self._reference_counts = [0] * num_blocks
        self._generations = [0] * num_blocks
        self._free_uncached: dict[int, None] = dict.fromkeys(reversed(range(num_blocks)))  # taken from its end
        self._free_cached: OrderedDict[int, None] = OrderedDict()  # taken from its beginning
        self._hash_of_block: dict[int, BlockHash] = {}
        self._block_of_hash: dict[BlockHash, int] = {}
        self._bundles: dict[int, tuple[int, ...]] = {}  # those of several blocks, by their first
        # a block that was one by itself may lie free with its content, and then be taken as a part of a bundle
        self._has_single_blocks = 1 in layout.widths
        self._num_hidden_free = 0  # blocks of free cached bundles beside their first
        self.num_evictions = 0
        self.num_references = 0
        self.num_logical_blocks = 0

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody references, including those that still hold cached KV."""
        return len(self._free_uncached) + len(self._free_cached) + self._num_hidden_free

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - self.num_free_blocks

    @property
    def num_cached_blocks(self) -> int:
        """Blocks, in use or free, that can be found again by their hash."""
        known = self._hash_of_block
        return len(known) + sum(len(blocks) - 1 for first, blocks in self._bundles.items() if first in known)

    @property
    def num_free_cached_blocks(self) -> int:
        """Free blocks that can still be found again."""
        return len(self._free_cached) + self._num_hidden_free

    def reference_count(self, block: int) -> int:
        return self._reference_counts[block]

    def generation(self, block: int) -> int:
        """How often ``block`` has been handed out. A full block's content stays the same as long as this does."""
        return self._generations[block]

    def blocks_of(self, block: int) -> tuple[int, ...]:
        """All blocks of the bundle that begins with ``block``."""
        return self._bundles.get(block) or (block,)

    def allocate(self, num_blocks: int) -> list[int]:
        """Take ``num_blocks`` free blocks, one reference each. NoFreeBlocks if there are fewer: then none is taken."""
        blocks = self._take(num_blocks)
        counts, generations = self._reference_counts, self._generations
        for block in blocks:
            counts[block] = 1
            generations[block] += 1
        self.num_references += num_blocks
        return blocks

    def allocate_bundles(self, number: int, width: int) -> list[int]:
        """Take ``number`` bundles of ``width`` blocks: their first blocks. NoFreeBlocks: then none is taken."""
        if width == 1:
            return self.allocate(number)
        blocks = self._take(number * width)
        generations, counts = self._generations, self._reference_counts
        firsts = blocks[::width]
        for block in blocks if self._has_single_blocks else firsts:
            generations[block] += 1
        for first in firsts:
            counts[first] = 1
        parts = iter(blocks)
        self._bundles.update(zip(firsts, zip(*[parts] * width, strict=True), strict=True))
        self.num_references += number
        return firsts

    def _take(self, num_blocks: int) -> list[int]:
        uncached = self._free_uncached
        if num_blocks <= len(uncached):
            return [uncached.popitem()[0] for _ in range(num_blocks)]
        if num_blocks > self.num_free_blocks:
            raise NoFreeBlocks
        blocks = [uncached.popitem()[0] for _ in range(len(uncached))]
        while len(blocks) < num_blocks:
            block, _ = self._free_cached.popitem(last=False)
            self._forget_hash(block)
            if block in self._bundles:
                bundle = self._bundles.pop(block)
                self._num_hidden_free -= len(bundle) - 1
                self._generations[block] += 1
                blocks.extend(bundle)
            else:
                blocks.append(block)
        if len(blocks) > num_blocks:  # the rest of the last bundle
            self._free_uncached |= dict.fromkeys(reversed(blocks[num_blocks:]))
            del blocks[num_blocks:]
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Add a reference to each block; a free one, whose content is still there, is in use again."""
        self.num_references += len(blocks)
        counts = self._reference_counts
        for block in blocks:
            if not counts[block]:
                del (self._free_cached if block in self._free_cached else self._free_uncached)[block]
                if block in self._bundles:
                    self._num_hidden_free -= len(self._bundles[block]) - 1
            counts[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Drop a reference to each block; ``blocks`` are in the order of their sequence.

        They are released deepest first, so that eviction takes the tail of a long prefix before its head.
        """
        self.num_references -= len(blocks)
        counts, bundles, known = self._reference_counts, self._bundles, self._hash_of_block
        for block in reversed(blocks):
            counts[block] -= 1
            if not counts[block]:
                if block in bundles:
                    self._free_bundle(block)
                else:
                    (self._free_cached if block in known else self._free_uncached)[block] = None

    def _free_bundle(self, first: int) -> None:
        if first in self._hash_of_block:
            self._free_cached[first] = None
            self._num_hidden_free += len(self._bundles[first]) - 1
        else:
            self._generations[first] += 1  # its blocks part: nothing can be found here any more
            self._free_uncached |= dict.fromkeys(reversed(self._bundles.pop(first)))

    def cache(self, block: int, block_hash: BlockHash) -> None:
        """Register ``block``, in use, under ``block_hash``, unless another block with this content already is."""
        if block_hash not in self._block_of_hash and block not in self._hash_of_block:
            self._block_of_hash[block_hash] = block
            self._hash_of_block[block] = block_hash

    def is_cached(self, block: int) -> bool:
        """Whether ``block`` can be found by a hash; its content must not change then."""
        return block in self._hash_of_block

    def uncache(self, block: int) -> None:
        """Forget the hash of ``block``, which is in use and about to change."""
        del self._block_of_hash[self._hash_of_block.pop(block)]

    def find(self, block_hash: BlockHash) -> int | None:
        """The block with the content of ``block_hash``, or None."""
        return self._block_of_hash.get(block_hash)

    def cached_blocks(self) -> list[tuple[int, BlockHash]]:
        """Cached blocks with their hashes: free ones in the order of their eviction, then those in use."""
        known = self._hash_of_block
        free = [(block, known[block]) for block in self._free_cached]
        return free + [(block, name) for block, name in known.items() if self._reference_counts[block]]

    def forget_cached(self) -> None:
        """Forget the content of every free block: none is found again, and none counts as evicted."""
        cached = list(self._free_cached)
        self._free_cached.clear()
        for block in cached:
            self.uncache(block)
            if block in self._bundles:
                self._num_hidden_free -= len(self._bundles[block]) - 1
                self._free_bundle(block)
            else:
                self._free_uncached[block] = None

    def _forget_hash(self, block: int) -> None:
        block_hash = self._hash_of_block.pop(block)
        del self._block_of_hash[block_hash]
        self.num_evictions += 1
        if self.on_evict is not None:
            self.on_evict(block, block_hash)


# The invariants of the pool of blocks, which hold between any two of its operations. Reads the pool's insides.


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
