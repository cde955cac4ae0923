"""Hits of a least recently used cache of every size at once: reuse distances, from one pass over the requests.

Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage hierarchies" (IBM Systems Journal 9, 1970): a
cache of C blocks that evicts what was used longest ago holds the top C of one stack, whatever C is. A request uses all
blocks of its chain, the deepest first (vLLM frees a request's blocks in reverse, vllm/v1/core/kv_cache_manager.py, and
its host cache ranks tails before heads, vllm/v1/kv_offload/cpu/policies/lru.py):

    stack, top first    r3: 0 1 2 3 | r2: 4 5 6 | r1: 2 3      r2 and r3 begin with the same four blocks

Whoever uses a block uses all before it in the chain later, so these lie above it: what a cache of any size holds of a
chain is its beginning, and a block hits exactly if its place in the stack is within C when the request comes. In the
stack each request owns one stretch of its chain, from where the last one left it that began alike to its end. So a
Fenwick tree over requests is enough: a request costs a few sums, not one per block.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from kvplan.fleet.tiers.chains import Chain


class Stretch(NamedTuple):
    """Blocks [first, end) of a request's chain that the request ``last`` used before. above: blocks that lie above
    the first of them in the stack."""

    request: int
    first: int
    end: int
    above: int
    last: int


class _Sums:
    """Sums over the last of a row of numbers (Fenwick tree)."""

    def __init__(self, count: int) -> None:
        self._tree = [0] * (count + 1)
        self._total = 0

    def add(self, place: int, value: int) -> None:
        self._total += value
        place += 1
        tree, size = self._tree, len(self._tree)
        while place < size:
            tree[place] += value
            place += place & -place

    def after(self, place: int) -> int:
        """Return the sum of what is behind ``place``."""
        place += 1
        found, tree = self._total, self._tree
        while place:
            found -= tree[place]
            place &= place - 1
        return found


class Stack:
    """The stack: of each request the first block that is still its own, and who owns the pieces."""

    def __init__(self, count: int) -> None:
        self._sums = _Sums(count)
        self._firsts = [0] * count
        self._owners: dict[int, int] = {}

    def use(self, request: int, chain: Chain) -> list[Stretch]:
        """Move a chain to the top; return what of it was in the stack."""
        owners, firsts, sums = self._owners, self._firsts, self._sums
        found: list[Stretch] = []
        for piece in chain.pieces:
            owner = owners.get(piece.key)
            if owner is None:
                break
            if found and found[-1].last == owner:
                found[-1] = found[-1]._replace(end=piece.end)
            else:
                above = sums.after(owner) + piece.first - firsts[owner]
                found.append(Stretch(request, piece.first, piece.end, above, owner))
        for stretch in found:
            sums.add(stretch.last, firsts[stretch.last] - stretch.end)
            firsts[stretch.last] = stretch.end
        for piece in chain.pieces:
            owners[piece.key] = request
        sums.add(request, chain.num_blocks)
        return found


@dataclass(frozen=True)
class ReuseDistances:
    """Every reuse of a trace. ``hits_at`` is exact for any number of blocks."""

    chains: tuple[Chain, ...]
    stretches: tuple[Stretch, ...]

    @cached_property
    def _bends(self) -> tuple[list[int], list[int], list[int]]:
        """(blocks of cache at which more or fewer blocks begin to hit, hits there, how many each block more brings)."""
        slopes: dict[int, int] = {}
        for each in self.stretches:
            slopes[each.above] = slopes.get(each.above, 0) + 1
            end = each.above + each.end - each.first
            slopes[end] = slopes.get(end, 0) - 1
        places, hits, rates = [0], [0], [0]
        for place in sorted(slopes):
            hits.append(hits[-1] + rates[-1] * (place - places[-1]))
            places.append(place)
            rates.append(rates[-1] + slopes[place])
        return places, hits, rates

    def num_hits(self, num_blocks: int) -> int:
        """Return how many blocks of prompts a cache of ``num_blocks`` finds."""
        places, hits, rates = self._bends
        at = bisect_right(places, num_blocks) - 1
        return hits[at] + rates[at] * (num_blocks - places[at])

    def hits_by_request(self, num_blocks: int) -> list[int]:
        """Return how many blocks of its prompt each request finds in a cache of ``num_blocks``."""
        found = [0] * len(self.chains)
        for each in self.stretches:
            if each.above < num_blocks:
                found[each.request] += min(each.end - each.first, num_blocks - each.above)
        return found

    @property
    def num_reused(self) -> int:
        """Blocks that a cache finds that keeps everything."""
        return sum(each.end - each.first for each in self.stretches)

    @cached_property
    def num_distinct(self) -> int:
        """Blocks that are needed to keep everything."""
        # What was not found in the stack is new: a prompt's last block may be found and is computed all the same.
        return self._num_used - self._num_found

    @cached_property
    def _num_used(self) -> int:
        return sum(chain.num_blocks for chain in self.chains)

    @cached_property
    def _num_found(self) -> int:
        keys: dict[int, int] = {}
        for chain in self.chains:
            for piece in chain.pieces:
                keys[piece.key] = keys.get(piece.key, -1) + 1
        return sum(
            (piece.end - piece.first) * keys.pop(piece.key, 0) for chain in self.chains for piece in chain.pieces
        )


def reuse_distances(chains: Sequence[Chain]) -> ReuseDistances:
    """Make the pass."""
    stack = Stack(len(chains))
    found: list[Stretch] = []
    for number, chain in enumerate(chains):
        found.extend(_that_can_hit(stack.use(number, chain), chain.most_hit_blocks))
    return ReuseDistances(tuple(chains), tuple(found))


def _that_can_hit(stretches: list[Stretch], most: int) -> Iterator[Stretch]:
    for each in stretches:
        if each.first < most:
            yield each if each.end <= most else each._replace(end=most)
