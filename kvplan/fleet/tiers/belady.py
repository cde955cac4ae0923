"""The most that a cache of a size can find of a trace, whatever it evicts: Belady's bound.

L. A. Belady, "A study of replacement algorithms for a virtual-storage computer" (IBM Systems Journal 5, 1966): evict
what is used again last, and do not keep what is not used again. Whoever uses a block uses all before it in the chain,
so a chain's deeper blocks are never used sooner, and evicting the deepest of those used next by the same request keeps
beginnings whole. So a number of blocks for each request that will use them is all the state there is.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvplan.fleet.tiers.chains import Chain


class NextUse(NamedTuple):
    """``num_blocks`` of a chain that the request ``by`` is the next to use."""

    by: int
    num_blocks: int


@dataclass(frozen=True)
class NextUses:
    """Says of each request by whom its blocks are used next; those that nobody uses again are left out."""

    chains: tuple[Chain, ...]
    uses: tuple[tuple[NextUse, ...], ...]

    def num_hits(self, num_blocks: int) -> int:
        """Return how many blocks of prompts the best cache of ``num_blocks`` finds."""
        kept: dict[int, int] = {}
        order: list[int] = []
        num_kept = found = 0
        for number, chain in enumerate(self.chains):
            mine = kept.pop(number, 0)
            num_kept -= mine
            found += min(mine, chain.most_hit_blocks)
            for by, count in self.uses[number]:
                if by not in kept:
                    kept[by] = 0
                    heapq.heappush(order, -by)
                kept[by] += count
                num_kept += count
            while num_kept > num_blocks:
                last = -order[0]
                taken = min(kept[last], num_kept - num_blocks)
                kept[last] -= taken
                num_kept -= taken
                if not kept[last]:
                    del kept[last]
                    heapq.heappop(order)
        return found


def next_uses(chains: Sequence[Chain]) -> NextUses:
    """Look from the last request back."""
    owners: dict[int, int] = {}
    uses: list[tuple[NextUse, ...]] = []
    for number in range(len(chains) - 1, -1, -1):
        found: list[NextUse] = []
        for piece in chains[number].pieces:
            by, count = owners.get(piece.key), piece.end - piece.first
            if by is None:
                break
            if found and found[-1].by == by:
                found[-1] = NextUse(by, found[-1].num_blocks + count)
            else:
                found.append(NextUse(by, count))
        uses.append(tuple(found))
        owners |= dict.fromkeys((piece.key for piece in chains[number].pieces), number)
    return NextUses(tuple(chains), tuple(reversed(uses)))
