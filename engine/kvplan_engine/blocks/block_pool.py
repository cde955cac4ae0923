"""The pool of KV blocks: who holds which block, and which one is handed out next. No tensors, no torch.

    free queues    uncached, last freed first    then    cached, least recently used first, deepest block first
                   ^ taken from this end                 a cached block that is looked up again leaves in O(1)
A block is free when nobody references it. A free block may still hold KV that is worth finding again (prefix
cache): it keeps its hash until it is handed out for something else.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence

BlockHash = bytes


class NoFreeBlocks(Exception):
    """Raised by :meth:`BlockPool.allocate` when fewer blocks are free than asked for. Nothing was taken."""


class BlockPool:
    """Reference counts and the free queue of ``num_blocks`` blocks of ``block_size`` token slots each."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.on_evict: Callable[[int, BlockHash], None] | None = None  # called with a cached block and its hash
        self._reference_counts = [0] * num_blocks
        self._generations = [0] * num_blocks
        self._free_uncached: dict[int, None] = dict.fromkeys(reversed(range(num_blocks)))  # taken from its end
        self._free_cached: OrderedDict[int, None] = OrderedDict()  # taken from its beginning
        self._hash_of_block: dict[int, BlockHash] = {}
        self._block_of_hash: dict[BlockHash, int] = {}
        self.num_evictions = 0
        self.num_references = 0

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody references, including those that still hold cached KV."""
        return len(self._free_uncached) + len(self._free_cached)

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - self.num_free_blocks

    @property
    def num_cached_blocks(self) -> int:
        """Blocks, in use or free, that can be found again by their hash."""
        return len(self._block_of_hash)

    @property
    def num_free_cached_blocks(self) -> int:
        """Free blocks that can still be found again."""
        return len(self._free_cached)

    def reference_count(self, block: int) -> int:
        return self._reference_counts[block]

    def generation(self, block: int) -> int:
        """How often ``block`` has been handed out. A full block's content stays the same as long as this does."""
        return self._generations[block]

    def num_unused_among(self, blocks: Iterable[int]) -> int:
        """How many of ``blocks`` nobody references: sharing these uses up free ones."""
        counts = self._reference_counts
        return sum(not counts[block] for block in blocks)

    def allocate(self, num_blocks: int) -> list[int]:
        """Take ``num_blocks`` free blocks, one reference each. NoFreeBlocks if there are fewer: then none is taken."""
        if num_blocks > self.num_free_blocks:
            raise NoFreeBlocks
        num_uncached = min(num_blocks, len(self._free_uncached))
        blocks = [self._free_uncached.popitem()[0] for _ in range(num_uncached)]
        for _ in range(num_blocks - num_uncached):
            block, _ = self._free_cached.popitem(last=False)
            self._forget_hash(block)
            blocks.append(block)
        counts, generations = self._reference_counts, self._generations
        for block in blocks:
            counts[block] = 1
            generations[block] += 1
        self.num_references += num_blocks
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Add a reference to each block; a free one, whose content is still there, is in use again."""
        self.num_references += len(blocks)
        for block in blocks:
            if self._reference_counts[block] == 0:
                del (self._free_cached if block in self._free_cached else self._free_uncached)[block]
            self._reference_counts[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Drop a reference to each block; ``blocks`` are in the order of their sequence.

        They are released deepest first, so that eviction takes the tail of a long prefix before its head.
        """
        self.num_references -= len(blocks)
        for block in reversed(blocks):
            self._reference_counts[block] -= 1
            if self._reference_counts[block] == 0:
                (self._free_cached if block in self._hash_of_block else self._free_uncached)[block] = None

    def cache(self, block: int, block_hash: BlockHash) -> None:
        """Register ``block``, in use, under ``block_hash``, unless another block with this content already is."""
        if block_hash not in self._block_of_hash and block not in self._hash_of_block:
            self._block_of_hash[block_hash] = block
            self._hash_of_block[block] = block_hash

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
        for block in self._free_cached:
            del self._block_of_hash[self._hash_of_block.pop(block)]
        self._free_uncached |= self._free_cached
        self._free_cached.clear()

    def _forget_hash(self, block: int) -> None:
        block_hash = self._hash_of_block.pop(block)
        del self._block_of_hash[block_hash]
        self.num_evictions += 1
        if self.on_evict is not None:
            self.on_evict(block, block_hash)

    def check(self, tables: Iterable[Sequence[int]] = ()) -> None:
        """Assert every invariant. tables: all block tables that hold references; without them that part is skipped."""
        counts = self._reference_counts
        assert sum(counts) == self.num_references, "the sum of references is wrong"
        assert all(count >= 0 for count in counts), "negative reference count"
        unreferenced = {block for block, count in enumerate(counts) if count == 0}
        assert unreferenced == {*self._free_uncached, *self._free_cached}, "free queues != unreferenced"
        assert unreferenced & self._hash_of_block.keys() == set(self._free_cached), "a free block is in the wrong queue"
        assert len(unreferenced) == self.num_free_blocks, "a block is in both free queues"
        assert len(self._block_of_hash) == len(self._hash_of_block), "hash maps differ in size"
        for block, block_hash in self._hash_of_block.items():
            assert self._block_of_hash[block_hash] == block, "hash maps disagree"
        tables = list(tables)
        if tables:
            held = Counter(block for table in tables for block in table)
            assert all(counts[block] == number for block, number in held.items()), "reference counts != block tables"
            assert sum(counts) == sum(held.values()), "a reference is held by no block table"
