"""Reusing KV that is already there: full blocks are identified by a chained hash of their tokens. No torch.

hash(block i) = blake2b(hash(block i-1) + the block's token ids), so equal hashes mean equal tokens from position 0 on,
which is what makes their KV equal. The chain starts from a salt: a digest of whatever else the KV depends on.

All groups of layers have the same tokens in their logical block i, so one chain serves them all: a bundle is found by
this hash and its group. A sequence can start behind i blocks if every layer then finds what its next token sees:

    full      0 1 2 3      i = 4: all of them
    window    . . 2 3             those that the window reaches back to
    state           4             the state after exactly these tokens, which is kept at the end of a prompt
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Rows
from typing import NamedTuple, Protocol

from kvplan_engine.blocks.block_pool import BlockHash, BlockPool
from kvplan_engine.blocks.block_table import BlockTable, FoundBundles
from kvplan_engine.blocks.layout import KvGroup

_DIGEST_BYTES = 16  # 2**-64 chance of any collision among four billion blocks


class _Salted(Protocol):
    @property
    def cache_salt(self) -> bytes: ...


class HashedTokens(Protocol):
    """What the cache needs of a sequence: its tokens, its block table and the hashes of its full blocks.

    request: says what its KV depends on besides its tokens.
    """

    @property
    def request(self) -> _Salted: ...

    token_ids: list[int]
    table: BlockTable
    block_hashes: list[BlockHash]
    num_registered_blocks: int


class PrefixMatch(NamedTuple):
    """``num_blocks`` logical blocks need not be computed. found: of each group, what is in the pool and what is not.

    missing: the names of those that are not in the pool, group by group.
    """

    num_blocks: int
    found: list[FoundBundles]
    missing: list[BlockHash]


def chain_hash(parent: BlockHash, packed_token_ids: bytes, digest_bytes: int = _DIGEST_BYTES) -> BlockHash:
    """The hash of a full block that follows the block with hash ``parent``."""
    return hashlib.blake2b(parent + packed_token_ids, digest_size=digest_bytes).digest()


def _nowhere(_: BlockHash) -> bool:
    return False


class PrefixCache:
    """Looks up and registers full blocks of sequences; counts queried and hit tokens, as vLLM does.

    A bundle's name in the pool, in tiers and in files is the hash of its block; where there are several groups, of one
    byte less, with the number of the group behind.
    """

    def __init__(self, pool: BlockPool, *, enabled: bool = True, salt: bytes = b"") -> None:
        self.enabled = enabled
        self._pool = pool
        self._pack = struct.Struct(f"<{pool.block_size}i").pack
        groups = pool.layout.groups
        self._suffixes = [b""] if len(groups) == 1 else [bytes([number]) for number in range(len(groups))]
        self._groups = list(zip(groups, self._suffixes, strict=True))
        self._token_groups = [
            (place, suffix) for place, (group, suffix) in enumerate(self._groups) if not group.is_state
        ]
        self._is_single = len(groups) == 1 and not groups[0].is_state
        self._no_match = PrefixMatch(0, [FoundBundles(0, []) for _ in groups], [])
        self._digest_bytes = _DIGEST_BYTES - len(self._suffixes[0])
        self._root: BlockHash = hashlib.blake2b(salt, digest_size=_DIGEST_BYTES).digest()
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0

    def reset(self) -> None:
        """Start empty. Nothing may run or wait. What KV tiers hold has other hashes from now on, so it is not found."""
        self._pool.forget_cached()
        self._root = hashlib.blake2b(self._root + b"reset", digest_size=_DIGEST_BYTES).digest()

    # ---- hashes

    def extend_hashes(self, hashes: list[BlockHash], token_ids: Rows[int], num_tokens: int, salt: bytes = b"") -> None:
        """Append to ``hashes`` those of the full blocks among the first ``num_tokens`` tokens that it lacks.

        salt: of the adapter that computes them.
        """
        size = self._pool.block_size
        for index in range(len(hashes), num_tokens // size):
            packed = self._pack(*token_ids[index * size : (index + 1) * size])
            hashes.append(self._next_hash(hashes, packed, salt))

    def _next_hash(self, hashes: Rows[BlockHash], packed_token_ids: bytes, salt: bytes) -> BlockHash:
        """Return the hash of the full block that follows those of ``hashes``."""
        parent = hashes[-1] if hashes else self._root + salt
        return chain_hash(parent, packed_token_ids, self._digest_bytes)

    def usable_hashes(self, hashes: list[BlockHash], token_ids: Rows[int], salt: bytes = b"") -> list[BlockHash]:
        """Hashes of the full blocks among all but the last token of a prompt; extends ``hashes`` as needed.

        At least one token must be computed: otherwise there would be no logits to sample from.
        """
        if not self.enabled:
            return []
        num_tokens = len(token_ids)
        self.extend_hashes(hashes, token_ids, num_tokens, salt)
        return hashes[: (num_tokens - 1) // self._pool.block_size]

    # ---- finding

    def lookup(self, hashes: Rows[BlockHash], is_elsewhere: Callable[[BlockHash], bool] = _nowhere) -> PrefixMatch:
        """The most blocks, from the first hash on, behind which a sequence can start.

        is_elsewhere: whether the bundle of that name can be brought into the pool.
        """
        if not hashes:
            return self._no_match
        if self._is_single and not self._pool.layout.forgets:
            return self._lookup_single(hashes, is_elsewhere)
        number = self._longest(hashes, lambda name: self._pool.find(name) is not None or is_elsewhere(name))
        if not number:
            return self._no_match
        found: list[FoundBundles] = []
        missing: list[BlockHash] = []
        for group, suffix in self._groups:
            first = number - self._num_needed(group, number)
            names = [name + suffix for name in hashes[first:number]]
            bundles = [self._pool.find(name) for name in names]
            missing += [name for name, bundle in zip(names, bundles, strict=True) if bundle is None]
            found.append(FoundBundles(0 if group.is_state else first, bundles))
        return PrefixMatch(number, found, missing)

    def _lookup_single(self, hashes: Rows[BlockHash], is_elsewhere: Callable[[BlockHash], bool]) -> PrefixMatch:
        """The same in one pass, where all layers need all tokens."""
        blocks: list[int | None] = []
        missing: list[BlockHash] = []
        find = self._pool.find
        for name in hashes:
            block = find(name)
            if block is None:
                if not is_elsewhere(name):
                    break
                missing.append(name)
            blocks.append(block)
        return PrefixMatch(len(blocks), [FoundBundles(0, blocks)], missing) if blocks else self._no_match

    def _longest(self, hashes: Rows[BlockHash], is_there: Callable[[BlockHash], bool]) -> int:
        """One pass: runs[g] blocks of group g in a row end with this one; for a state only this one counts."""
        groups = self._groups
        runs = [0] * len(groups)
        longest = 0
        for index, block_hash in enumerate(hashes):
            for place, (group, suffix) in enumerate(groups):
                if is_there(block_hash + suffix):
                    runs[place] += 1
                elif group.kept.kind == "full":
                    return longest
                else:
                    runs[place] = 0
            needed = (self._num_needed(group, index + 1) for group, _ in groups)
            if all(run >= number for run, number in zip(runs, needed, strict=True)):
                longest = index + 1
        return longest

    def _num_needed(self, group: KvGroup, num_blocks: int) -> int:
        """How many bundles, up to the last one, a sequence needs in ``group`` to start behind ``num_blocks`` blocks."""
        if group.is_state:
            return min(num_blocks, 1)
        return num_blocks - group.first_kept_token(num_blocks * self._pool.block_size) // self._pool.block_size

    def record_lookup(self, num_tokens: int, num_hit_tokens: int) -> None:
        """Count an admitted prompt once, however often it was looked up while the pool was full."""
        if self.enabled:
            self.num_queried_tokens += num_tokens
            self.num_hit_tokens += num_hit_tokens

    # ---- registering

    def register_next(self, sequences: Iterable[HashedTokens]) -> None:
        """Register the next block of each of ``sequences``, which has just become full; runs in every decode step."""
        pack, size = self._pack, self._pool.block_size
        cache = self._pool.cache if self._is_single and not self._pool.layout.forgets else None
        for sequence in sequences:
            index, hashes = sequence.num_registered_blocks, sequence.block_hashes
            if index == len(hashes):
                first = index * size
                packed = pack(*sequence.token_ids[first : first + size])
                hashes.append(self._next_hash(hashes, packed, sequence.request.cache_salt))
            if cache is not None:
                cache(sequence.table.groups[0].bundles[index], hashes[index])
            else:
                self._register_block(sequence.table, hashes[index], index)
            sequence.num_registered_blocks = index + 1

    def register(self, table: BlockTable, hashes: Rows[BlockHash], first: int, last: int) -> None:
        """Register logical blocks ``first`` to ``last`` - 1 of a sequence, which are full, under their hashes."""
        if self.enabled:
            for index in range(first, last):
                self._register_block(table, hashes[index], index)

    def _register_block(self, table: BlockTable, block_hash: BlockHash, index: int) -> None:
        for place, suffix in self._token_groups:
            group = table.groups[place]
            if index >= group.first:
                self._pool.cache(group.bundles[index - group.first], block_hash + suffix)

    def register_states(self, table: BlockTable, block_hash: BlockHash) -> None:
        """Register the states of a sequence that has computed exactly the block of ``block_hash`` and those before."""
        for group, suffix in zip(table.groups, self._suffixes, strict=True):
            if group.group.is_state:
                self._pool.cache(group.bundles[0], block_hash + suffix)
