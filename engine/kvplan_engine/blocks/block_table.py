"""One sequence's block table: logical block i of the sequence -> physical block of the pool. No torch.

block_size 4, 10 tokens:    logical   0        1        2
                            tokens    0 1 2 3  4 5 6 7  8 9 . .      <- two empty slots: all that paging wastes
                            physical  7        2        9
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan_engine.blocks.block_pool import BlockPool


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """A copy-on-write of one block, all layers, which is carried out before the step."""

    source: int
    target: int


class BlockTable:
    """The blocks of one sequence, in order; it owns one reference to each of them.

    version: changes whenever a block is replaced, but not when blocks are appended.
    """

    __slots__ = ("_pool", "blocks", "version")

    def __init__(self, pool: BlockPool, blocks: list[int] | None = None) -> None:
        self._pool = pool
        self.blocks: list[int] = blocks or []
        self.version = 0

    def __len__(self) -> int:
        return len(self.blocks)

    def num_new_blocks(self, first_token: int, num_tokens: int) -> int:
        """How many blocks ``reserve`` would take for ``num_tokens`` tokens in all, writing from ``first_token`` on."""
        needed = -(-num_tokens // self._pool.block_size) - len(self.blocks)
        return max(needed, 0) + (1 if self._shared_block_to_write(first_token) is not None else 0)

    def reserve(self, first_token: int, num_tokens: int) -> BlockCopy | None:
        """Make room for ``num_tokens`` tokens in all, of which those from ``first_token`` on are written now.

        A shared block is replaced by one of its own before it is written (copy-on-write): the copy to make is
        returned. NoFreeBlocks when the pool has too few; then nothing has changed.
        """
        shared = self._shared_block_to_write(first_token)
        new_blocks = self._pool.allocate(self.num_new_blocks(first_token, num_tokens))
        copy = None
        if shared is not None:
            copy = BlockCopy(source=self.blocks[shared], target=new_blocks.pop())
            self._pool.free([copy.source])
            self.blocks[shared] = copy.target
            self.version += 1
        self.blocks.extend(new_blocks)
        return copy

    def _shared_block_to_write(self, first_token: int) -> int | None:
        """Index of the block to copy, if any. Only a partly filled one can be: full blocks are never written again."""
        logical = first_token // self._pool.block_size
        if first_token % self._pool.block_size == 0 or logical >= len(self.blocks):
            return None
        return logical if self._pool.reference_count(self.blocks[logical]) > 1 else None

    def fork(self) -> BlockTable:
        """A second table over the same blocks; each gets another reference."""
        self._pool.share(self.blocks)
        return BlockTable(self._pool, list(self.blocks))

    def adopt(self, blocks: list[int]) -> None:
        """Start an empty table with blocks from the prefix cache; takes a reference to each."""
        assert not self.blocks
        self._pool.share(blocks)
        self.blocks = list(blocks)

    def release(self) -> None:
        """Give all blocks back."""
        self._pool.free(self.blocks)
        self.blocks = []
        self.version += 1
