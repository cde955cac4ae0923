"""Hits of a cache of one size where layers keep only windows or states: a replay, request by request.

A hybrid model's request leaves all blocks of the layers that keep every token, and of the others what stands where its
prompt can be resumed: the last window's blocks, or the state. vLLM keeps that at the last boundary that the same prompt
could resume at and where a beginning ends that other prompts share (``prefix_cache_retention_interval`` 0, the default:
vllm/config/cache.py; reachable_block_mask in vllm/v1/core/single_type_kv_cache_manager.py, read in 0.32 and 0.33). What
is not kept goes to the front of the free queue and takes no room (free_blocks in block_pool.py).

    prompt   |----|----|----|----|-        chain: 4 units of blocks that every later prompt may find
                  ^ shared       ^ own     ends: windows or states at these places

A hit is the longest beginning that is in the chain and has an end. Which ends are touched depends on which was found,
and so on the size: one pass cannot serve all sizes, and each is replayed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.fleet.tiers.chains import Chain


@dataclass(frozen=True, slots=True)
class Weights:
    """What takes how many blocks of the pool: a unit of a chain, and an end (0 where layers keep every token)."""

    unit: int
    end: int


class ReplayedCache:
    """Least recently used over chains and ends, in blocks of one pool."""

    def __init__(self, num_blocks: int, weights: Weights, count: int) -> None:
        self._num_blocks, self._weights = num_blocks, weights
        self._owners: dict[int, int] = {}
        self._firsts = [0] * count
        self._lasts = [0] * count
        self._order: OrderedDict[int | tuple[int, int], None] = OrderedDict()
        self._ends: dict[int, list[int]] = {}
        self._num_used = 0

    @property
    def num_used(self) -> int:
        """Blocks that hold something."""
        return self._num_used

    def use(self, number: int, chain: Chain) -> int:
        """Return how many units a request finds, and take in what it leaves."""
        reach = min(self._reach(chain), chain.most_hit_blocks)
        found = self._deepest_end(chain, reach) if self._weights.end else reach
        self._take_over(number, chain)
        if self._weights.end:
            # Where it was resumed, where other layers could have been, and where its own prompt can be.
            for place in sorted({found, reach, chain.most_hit_blocks} - {0}, reverse=True):
                self._keep_end(_key_at(chain, place, number), place)
        self._make_room()
        return found

    def _reach(self, chain: Chain) -> int:
        reach = 0
        for piece in chain.pieces:
            owner = self._owners.get(piece.key)
            if owner is None or self._lasts[owner] <= piece.first:
                break
            reach = min(piece.end, self._lasts[owner])
            if reach < piece.end:
                break
        return reach

    def _deepest_end(self, chain: Chain, reach: int) -> int:
        deepest = 0
        for piece in chain.pieces:
            if piece.first >= reach:
                break
            deepest = max(deepest, *(each for each in self._ends.get(piece.key, ()) if each <= reach), 0)
        return deepest

    def _take_over(self, number: int, chain: Chain) -> None:
        weight, firsts, lasts = self._weights.unit, self._firsts, self._lasts
        for piece in chain.pieces:
            owner = self._owners.get(piece.key)
            self._owners[piece.key] = number
            if owner is None or firsts[owner] >= piece.end:
                continue
            taken = max(min(piece.end, lasts[owner]) - firsts[owner], 0)
            self._num_used -= taken * weight
            firsts[owner] = piece.end
            if lasts[owner] <= piece.end:
                self._order.pop(owner, None)
        lasts[number] = chain.num_blocks
        self._num_used += chain.num_blocks * weight
        self._order[number] = None

    def _keep_end(self, key: int, place: int) -> None:
        known = self._ends.setdefault(key, [])
        if place not in known:
            known.append(place)
            self._num_used += self._weights.end
        self._order[key, place] = None
        self._order.move_to_end((key, place))

    def _make_room(self) -> None:
        while self._num_used > self._num_blocks and self._order:
            oldest = next(iter(self._order))
            if isinstance(oldest, int):
                self._shorten(oldest)
            else:
                key, place = oldest
                self._ends[key].remove(place)
                self._num_used -= self._weights.end
                del self._order[oldest]

    def _shorten(self, owner: int) -> None:
        """Evict the deepest units of a request's own stretch, as many as are needed."""
        weight, held = self._weights.unit, self._lasts[owner] - self._firsts[owner]
        taken = min(-(-(self._num_used - self._num_blocks) // weight), held)
        self._lasts[owner] -= taken
        self._num_used -= taken * weight
        if taken == held:
            del self._order[owner]


def _key_at(chain: Chain, place: int, number: int) -> int:
    """Return whose tokens end at ``place``: those of a piece, or the request's own that no other has."""
    return next((piece.key for piece in chain.pieces if piece.first < place <= piece.end), -1 - number)


def replayed_hits(chains: Sequence[Chain], weights: Weights, num_blocks: int) -> list[int]:
    """Return how many units of its prompt each request finds in a pool of ``num_blocks``."""
    cache = ReplayedCache(num_blocks, weights, len(chains))
    return [cache.use(number, chain) for number, chain in enumerate(chains)]


def needed_blocks(chains: Sequence[Chain], weights: Weights) -> int:
    """Return the blocks of a cache that never evicts."""
    cache = ReplayedCache(1 << 62, weights, len(chains))
    for number, chain in enumerate(chains):
        cache.use(number, chain)
    return cache.num_used
