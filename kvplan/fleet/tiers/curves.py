"""The curve of one layout and KV format: what a cache of any size finds of a trace, over all replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from kvplan.fleet.requests import FleetRequest
from kvplan.fleet.tiers.belady import NextUses, next_uses
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
    on_progress: Callable[[int], None] | None = None,
) -> CacheCurve:
    """Return the curve of requests that are ``split`` over caches. keeps_answers: as for ``chains_of``."""
    caches = []
    for requests in split:
        chains = chains_of(requests, layout.unit_tokens, keeps_answers=keeps_answers)
        numbers = tuple(request.number for request in requests)
        caches.append(MetCache(numbers, tuple(chains), reuse_distances(chains, on_progress)))
    prompts = sum(request.num_prompt_tokens for requests in split for request in requests)
    return CacheCurve(layout, tuple(caches), prompts)
