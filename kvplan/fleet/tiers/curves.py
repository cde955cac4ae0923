"""The curve of one layout and KV format: what a cache of any size finds of a trace, over all replicas.

The most that a cache of a size can find, whatever it evicts, is Belady's bound (``NextUses``).

L. A. Belady, "A study of replacement algorithms for a virtual-storage computer" (IBM Systems Journal 5, 1966): evict
what is used again last, and do not keep what is not used again. Whoever uses a block uses all before it in the chain,
so a chain's deeper blocks are never used sooner, and evicting the deepest of those used next by the same request keeps
beginnings whole. So a number of blocks for each request that will use them is all the state there is.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from kvplan.fleet.requests import FleetRequest
from kvplan.fleet.tiers.chains import Chain, chains_of
from kvplan.fleet.tiers.distances import ReuseDistances, reuse_distances
from kvplan.fleet.tiers.layouts import CacheLayout
from kvplan.fleet.tiers.replayed import Weights, needed_blocks, replayed_hits


@dataclass(frozen=True, slots=True)
class Hit:
    """Tokens that one request finds, and those of its prompt."""

    num_tokens: int
    num_prompt_tokens: int


@dataclass(frozen=True)
class MetCache:
    """One cache and the requests that meet it, by their numbers; keeps what was replayed."""

    numbers: tuple[int, ...]
    chains: tuple[Chain, ...]
    reuse: ReuseDistances
    replays: dict[tuple[Weights, int], list[int]] = field(default_factory=dict)

    def units(self, layout: CacheLayout, num_blocks: int) -> list[int]:
        """Return the units that each request finds."""
        if not layout.weights.end:
            return self.reuse.hits_by_request(num_blocks // layout.weights.unit)
        key = (layout.weights, num_blocks)
        if key not in self.replays:
            self.replays[key] = replayed_hits(self.chains, layout.weights, num_blocks)
        return self.replays[key]

    def num_needed(self, weights: Weights) -> int:
        """Return the blocks that keep everything."""
        return needed_blocks(self.chains, weights) if weights.end else self.reuse.num_distinct * weights.unit


@dataclass(frozen=True)
class CacheCurve:
    """caches: one for each replica, or a single one that all share."""

    layout: CacheLayout
    caches: tuple[MetCache, ...]
    num_prompt_tokens: int

    def of_layout(self, layout: CacheLayout) -> CacheCurve:
        """Return the same for a layout with hits of as many tokens."""
        return replace(self, layout=layout)

    def hits(self, num_blocks: int) -> list[Hit]:
        """Return what each request finds, in the trace's order, where each cache has ``num_blocks``."""
        layout = self.layout
        found: dict[int, Hit] = {}
        for cache in self.caches:
            of_each = zip(cache.numbers, cache.chains, cache.units(layout, num_blocks), strict=True)
            for number, chain, units in of_each:
                tokens = max(units * layout.unit_tokens - layout.dropped_tokens, 0)
                found[number] = Hit(tokens, chain.num_prompt_tokens)
        return [found[number] for number in sorted(found)]

    def hit_share(self, num_blocks: int) -> float:
        """Return the share of all prompt tokens that is found."""
        return sum(hit.num_tokens for hit in self.hits(num_blocks)) / self.num_prompt_tokens

    def best_share(self, num_blocks: int) -> float:
        """Return Belady's bound; windows and states are taken to need no room in it."""
        layout = self.layout
        units = sum(uses.num_hits(num_blocks // layout.weights.unit) for uses in self._uses)
        return units * layout.unit_tokens / self.num_prompt_tokens

    @cached_property
    def _uses(self) -> list[NextUses]:
        return [next_uses(cache.chains) for cache in self.caches]

    @cached_property
    def num_needed_blocks(self) -> int:
        """Blocks of the largest cache that never evicts."""
        return max(cache.num_needed(self.layout.weights) for cache in self.caches)


def cache_curve(
    split: Sequence[Sequence[FleetRequest]],
    layout: CacheLayout,
    *,
    keeps_answers: bool = True,
) -> CacheCurve:
    """Return the curve of requests that are ``split`` over caches. keeps_answers: as for ``chains_of``."""
    caches = []
    for requests in split:
        chains = chains_of(requests, layout.unit_tokens, keeps_answers=keeps_answers)
        numbers = tuple(request.number for request in requests)
        caches.append(MetCache(numbers, tuple(chains), reuse_distances(chains)))
    prompts = sum(request.num_prompt_tokens for requests in split for request in requests)
    return CacheCurve(layout, tuple(caches), prompts)


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
