"""One kind of cache groups in a pool: what it can find of a prompt, and which blocks a request holds of it.

The rules are those of the managers in vllm/v1/core/single_type_kv_cache_manager.py, read in 0.32.0 and 0.33.0:

full      found from the first block on, up to the first that is missing (FullAttentionManager)
sliding   found where the last ``window_tokens - 1`` tokens before a place are, or all of them (SlidingWindowManager)
chunked   found where the chunk that the place is in is (ChunkedLocalAttentionManager)
state     found where the block that ends there is: the state after it (MambaManager, cache mode align)
fixed     never found; a block for each request (CircularBufferManager)
"""

from __future__ import annotations

from typing import Final

from kvplan.fleet.replicas.extents import Extent, FreeQueue, LaneHolding
from kvplan.fleet.replicas.kept import KeptBlocks
from kvplan.fleet.replicas.setup import CacheGroup
from kvplan.fleet.requests import TokenRun

ENDLESS: Final = 1 << 60
"""End of the last run of a request in hand: its answer's, which can go on."""
Piece = tuple[Extent, int, int]
"""Blocks of an extent from one to another, exclusive."""


class Lane:
    """weight: groups of this kind. alignment: tokens of which a hit is a multiple. fresh: states that the step which is
    composed writes."""

    def __init__(self, group: CacheGroup, alignment: int, queue: FreeQueue, retention_interval: int | None) -> None:
        self.kind, self.size, self.weight = group.kind, group.block_size, group.count
        self.window = group.window_tokens or 0
        self._alignment = alignment
        self.drops = int(group.drops_a_block)
        self._queue = queue
        self._found: dict[int, list[Extent]] = {}
        self._needed = -(-(self.window - 1) // self.size)
        self.kept = KeptBlocks(group, alignment, retention_interval)
        self.fresh: set[tuple[int, int]] = set()

    @property
    def leaves_blanks(self) -> bool:
        """Whether full blocks that are let go may be such that nobody can find, which are taken first."""
        return not self.kept.is_all

    # ---- what is found

    def longest(self, runs: list[TokenRun], limit: int) -> int:
        """Tokens, at most ``limit``, that this lane can begin with."""
        if self.kind == "full":
            drops = self.drops
            most = limit // self.size + (drops if self._alignment != self.size else 0)
            found = self._covered_from(runs, 0, most)
            return max(found - drops, 0) * self.size // self._alignment * self._alignment
        if self.kind == "chunked":
            begin = limit // self.window * self.window // self.size
            return self._covered_from(runs, begin, limit // self.size) * self.size
        if self.kind == "fixed":
            return limit
        return self._deepest(runs, limit)

    def _deepest(self, runs: list[TokenRun], limit: int) -> int:
        """The deepest place at which the blocks before it that are needed are there."""
        drops, step = self.drops, self._alignment // self.size or 1
        needed = 1 if self.kind == "state" else self._needed + drops
        for begin, end in reversed(self._coverage(runs, limit // self.size + drops)):
            place = (end - drops) // step * step
            if place > 0 and (place + drops - begin >= needed or (begin == 0 and self.kind == "sliding")):
                return place * self.size
        return 0

    def _covered_from(self, runs: list[TokenRun], begin: int, most: int) -> int:
        """The block up to which all from ``begin`` on are there, at most ``most``."""
        place, start = begin, 0
        for key, end in runs:
            first, last = max(start // self.size, place), min(end // self.size, most)
            start = end
            if first >= last:
                if place >= most:
                    break
                continue
            extents = self._found.get(key)
            while extents and place < last:
                reached = max((each.last for each in extents if each.first <= place < each.last), default=place)
                if reached == place:
                    break
                place = min(reached, last)
            if place < last:
                break
        return max(place, begin)

    def _coverage(self, runs: list[TokenRun], most: int) -> list[tuple[int, int]]:
        """Stretches of blocks that are there, before block ``most``."""
        found: list[tuple[int, int]] = []
        start = 0
        for key, end in runs:
            first, last = start // self.size, min(end // self.size, most)
            start = end
            if first >= most:
                break
            for extent in sorted(self._found.get(key, ()), key=lambda each: each.first):
                begin, stop = max(extent.first, first), min(extent.last, last)
                if begin >= stop:
                    continue
                if found and begin <= found[-1][1]:
                    found[-1] = (found[-1][0], max(found[-1][1], stop))
                else:
                    found.append((begin, stop))
        return found

    def pieces(self, runs: list[TokenRun], begin: int, end: int) -> list[Piece]:
        """The blocks from ``begin`` to ``end``, which are there: of several copies the one that was first."""
        found: list[Piece] = []
        place, start = begin, 0
        for key, stop in runs:
            last = min(stop // self.size, end)
            if start // self.size >= end:
                break
            start = stop
            while place < last:
                extents = self._found[key]
                for number, extent in enumerate(extents):
                    if extent.first <= place < extent.last:
                        reached = min(extent.last, last)
                        for earlier in extents[:number]:
                            if place < earlier.first < reached:
                                reached = earlier.first
                        found.append((extent, place, reached))
                        place = reached
                        break
                else:
                    raise AssertionError("a block that was found is gone")
        return found

    def first_needed(self, hit_tokens: int) -> int:
        """The first block that a request with so many tokens still needs."""
        if self.kind == "sliding":
            return max(hit_tokens - self.window + 1, 0) // self.size
        if self.kind == "chunked":
            return hit_tokens // self.window * self.window // self.size
        if self.kind == "state":
            return max(hit_tokens - 1, 0) // self.size
        return 0

    def tokens_that_need(self, first: int) -> int:
        """With how many tokens a request needs no block before ``first`` for the first time."""
        if self.kind == "sliding":
            return first * self.size + self.window - 1
        if self.kind == "chunked":
            return -(-first * self.size // self.window) * self.window
        return first * self.size + 1

    def num_findable(self, num_tokens: int) -> int:
        """Blocks that can be found of so many tokens: whole hits' ones (``get_num_cacheable_tokens``)."""
        aligned = num_tokens // self._alignment * self._alignment
        if self.drops and aligned and self._alignment != self.size:
            aligned = min(num_tokens, aligned + self.size)
        return aligned // self.size

    def is_fresh(self, pieces: list[Piece]) -> bool:
        """Whether the state behind ``pieces`` is written in the step that is composed: nobody can go on from it."""
        if not pieces or not self.fresh:
            return False
        extent, _, end = pieces[-1]
        return (extent.key, end - 1) in self.fresh

    # ---- what is held

    def hold(self, holding: LaneHolding, pieces: list[Piece]) -> None:
        """Let ``holding``, which has nothing yet, have ``pieces``."""
        for extent, begin, end in reversed(pieces):  # cutting the deeper first leaves the places of the others
            if end < extent.last:
                self.split(extent, end)
            own = extent if extent.first == begin else self.split(extent, begin)
            if own.is_free:
                self._queue.hold(own, self.weight)
            own.holders.append(holding)
            holding.extents.append(own)
        holding.extents.reverse()

    def split(self, extent: Extent, place: int) -> Extent:
        """Cut ``extent`` at block ``place``. Return its deeper part."""
        deeper = Extent(extent.key, place, extent.last, extent.home)
        extent.last = place
        deeper.companion = extent.companion
        alike = extent.home[extent.key]
        alike.insert(alike.index(extent) + 1, deeper)
        for holding in extent.holders:
            held = holding.extents
            held.insert(held.index(extent) + 1, deeper)
        deeper.holders = list(extent.holders)
        if extent.is_free:
            self._queue.stand_beside(deeper, extent)
        return deeper

    def add(self, holding: LaneHolding, runs: list[TokenRun], begin: int, end: int) -> None:
        """The blocks from ``begin`` to ``end``, which ``holding`` has, are full: those that are kept can be found from
        now on."""
        start = 0
        for key, stop in runs:
            first, last = max(start // self.size, begin), min(stop // self.size, end)
            start = stop
            for one, other in self.kept.stretches(first, last, holding.places):
                self._add(holding, key, one, other)
            if last == end:
                break

    def _add(self, holding: LaneHolding, key: int, begin: int, end: int) -> None:
        if self.kind == "state":
            self.fresh.add((key, end - 1))
        if holding.extents:
            last = holding.extents[-1]
            if last.key == key and last.last == begin and len(last.holders) == 1 and not self._has(key, begin, end):
                last.last = end
                return
        extent = Extent(key, begin, end, self._found)
        self._found.setdefault(key, []).append(extent)
        extent.holders.append(holding)
        holding.extents.append(extent)

    def _has(self, key: int, begin: int, end: int) -> bool:
        """Whether somebody filled one of these blocks before: of several copies the first one is found."""
        alike = self._found[key]
        return len(alike) > 1 and any(each.first < end and begin < each.last for each in alike)

    def num_kept(self, holding: LaneHolding, first: int, last: int) -> int:
        """How many of the blocks are kept when they are full."""
        return sum(end - begin for begin, end in self.kept.stretches(first, last, holding.places))

    def let_go(self, holding: LaneHolding, extents: list[Extent]) -> int:
        """``holding`` has ``extents`` no more, deepest first. Return how many blocks these are."""
        free, count = [], 0
        for extent in extents:
            count += extent.last - extent.first
            extent.holders.remove(holding)
            if not extent.holders:
                free.append(extent)
        if free:
            self._queue.free(free, self.weight)
        return count
