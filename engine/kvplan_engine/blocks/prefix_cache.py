"""Reusing KV that is already in the pool: full blocks are identified by a chained hash of their tokens. No torch.

hash(block i) = blake2b(hash(block i-1) + the block's token ids), so equal hashes mean equal tokens from position 0 on,
which is what makes their KV equal. The chain starts from a salt: a digest of whatever else the KV depends on.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from collections.abc import Sequence as Rows
from typing import Protocol

from kvplan_engine.blocks.block_pool import BlockHash, BlockPool
from kvplan_engine.blocks.block_table import BlockTable

_DIGEST_BYTES = 16  # 2**-64 chance of any collision among four billion blocks


class HashedTokens(Protocol):
    """What the cache needs of a sequence: its tokens, its block table and the hashes of its full blocks."""

    token_ids: list[int]
    table: BlockTable
    block_hashes: list[BlockHash]
    num_registered_blocks: int


def chain_hash(parent: BlockHash, packed_token_ids: bytes) -> BlockHash:
    """The hash of a full block that follows the block with hash ``parent``."""
    return hashlib.blake2b(parent + packed_token_ids, digest_size=_DIGEST_BYTES).digest()


class PrefixCache:
    """Looks up and registers full blocks of sequences; counts queried and hit tokens, as vLLM does."""

    def __init__(self, pool: BlockPool, *, enabled: bool = True, salt: bytes = b"") -> None:
        self.enabled = enabled
        self._pool = pool
        self._pack = struct.Struct(f"<{pool.block_size}i").pack
        self._root: BlockHash = hashlib.blake2b(salt, digest_size=_DIGEST_BYTES).digest()
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0

    def reset(self) -> None:
        """Start empty. Nothing may run or wait. What KV tiers hold has other hashes from now on, so it is not found."""
        self._pool.forget_cached()
        self._root = hashlib.blake2b(self._root + b"reset", digest_size=_DIGEST_BYTES).digest()

    def extend_hashes(self, hashes: list[BlockHash], token_ids: Rows[int], num_tokens: int) -> None:
        """Append to ``hashes`` those of the full blocks among the first ``num_tokens`` tokens that it lacks."""
        size = self._pool.block_size
        for index in range(len(hashes), num_tokens // size):
            parent = hashes[-1] if hashes else self._root
            hashes.append(chain_hash(parent, self._pack(*token_ids[index * size : (index + 1) * size])))

    def register_next(self, sequences: Iterable[HashedTokens]) -> None:
        """Register the next block of each of ``sequences``, which has just become full; runs in every decode step."""
        pack, size, cache = self._pack, self._pool.block_size, self._pool.cache
        for sequence in sequences:
            index, hashes = sequence.num_registered_blocks, sequence.block_hashes
            if index == len(hashes):
                first = index * size
                hashes.append(
                    chain_hash(hashes[-1] if index else self._root, pack(*sequence.token_ids[first : first + size]))
                )
            cache(sequence.table.blocks[index], hashes[index])
            sequence.num_registered_blocks = index + 1

    def usable_hashes(self, hashes: list[BlockHash], token_ids: Rows[int]) -> list[BlockHash]:
        """Hashes of the full blocks among all but the last token of a prompt; extends ``hashes`` as needed.

        At least one token must be computed: otherwise there would be no logits to sample from.
        """
        if not self.enabled:
            return []
        num_tokens = len(token_ids)
        self.extend_hashes(hashes, token_ids, num_tokens)
        return hashes[: (num_tokens - 1) // self._pool.block_size]

    def lookup(self, hashes: Rows[BlockHash]) -> list[int]:
        """The longest run of cached blocks, from the first hash on."""
        blocks: list[int] = []
        for block_hash in hashes:
            block = self._pool.find(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def record_lookup(self, num_tokens: int, num_hit_tokens: int) -> None:
        """Count an admitted prompt once, however often it was looked up while the pool was full."""
        if self.enabled:
            self.num_queried_tokens += num_tokens
            self.num_hit_tokens += num_hit_tokens

    def register(self, hashes: Rows[BlockHash], blocks: Rows[int], first: int, last: int) -> None:
        """Register blocks ``first`` to ``last`` - 1 of a sequence, which are full, under their hashes."""
        if self.enabled:
            for index in range(first, last):
                self._pool.cache(blocks[index], hashes[index])
