"""Which prefixes an engine probably has in its cache: digests of the blocks that it was sent, the latest ones.

Blocks are chained as in the engine's prefix cache: the digest of a block says all tokens up to its end. Evictions are
not reported. An engine evicts what was used longest ago, and so does this memory, which holds as many blocks as the
engine keeps. What it says is therefore a guess: a wrong one costs the time to compute a prefix again, never a token.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

_DIGEST_BYTES = 8  # one wrong guess among 2**32 blocks


@dataclass(frozen=True, slots=True)
class PrefixChain:
    """The digests of a sequence's full blocks, and its tokens behind them."""

    block_size: int
    root: bytes
    digests: tuple[bytes, ...] = ()
    rest: tuple[int, ...] = ()

    def extended(self, token_ids: Sequence[int]) -> PrefixChain:
        """With ``token_ids`` behind it."""
        tokens = [*self.rest, *token_ids]
        num_full = len(tokens) // self.block_size * self.block_size
        packed = array("i", tokens[:num_full]).tobytes()
        width = self.block_size * array("i").itemsize
        tail = self.digests[-1] if self.digests else self.root
        digests = list(self.digests)
        for start in range(0, len(packed), width):
            tail = hashlib.blake2b(tail + packed[start : start + width], digest_size=_DIGEST_BYTES).digest()
            digests.append(tail)
        return replace(self, digests=tuple(digests), rest=tuple(tokens[num_full:]))


def prefix_chain(token_ids: Sequence[int], block_size: int, salt: str = "") -> PrefixChain:
    """Chain of ``token_ids``. salt: what their KV depends on beside them, such as the adapter that computes it."""
    root = hashlib.blake2b(salt.encode(), digest_size=_DIGEST_BYTES).digest()
    return PrefixChain(block_size, root).extended(token_ids)


class PrefixMemory:
    """The ``capacity`` blocks that one engine was sent last."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._digests: OrderedDict[bytes, None] = OrderedDict()  # what was used longest ago comes first

    def __len__(self) -> int:
        return len(self._digests)

    def num_matched(self, digests: Sequence[bytes]) -> int:
        """How many of ``digests``, from the first on, are remembered."""
        known = self._digests
        return next((number for number, digest in enumerate(digests) if digest not in known), len(digests))

    def remember(self, digests: Sequence[bytes]) -> None:
        """They were used now. Of one sequence the last block is forgotten first: no other needs it."""
        known = self._digests
        for digest in reversed(digests):
            known[digest] = None
            known.move_to_end(digest)
        while len(known) > self._capacity:
            known.popitem(last=False)

    def clear(self) -> None:
        self._digests.clear()
