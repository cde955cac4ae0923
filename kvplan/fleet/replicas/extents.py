"""Stretches of blocks in a pool, and the queue of those that nobody holds.

vLLM moves single blocks (vllm/v1/core/block_pool.py); here blocks that lie side by side in a prompt and have the same
holders are one *extent*. The queue of free blocks, from the first that is taken to the last:

    blank blocks                   were never filled, or not to their end: nobody can find them
    extents and junk, oldest first what can be found, each from its deepest block on, and what cannot

A layout with several groups of the same kind has a block of each for the same tokens, which lie free one group after
the other. A prefix is found only where all groups have it, so that the first group's blocks are the ones that matter:
an extent counts these, and those of the others are its ``companion``, junk that leaves the queue where the extent is
held again.
"""

from __future__ import annotations

from collections.abc import Iterable


class QueueNode:
    """Something in the queue of free blocks."""

    __slots__ = ("after", "before", "is_free")

    def __init__(self) -> None:
        self.before: QueueNode | None = None
        self.after: QueueNode | None = None
        self.is_free = False


class Junk(QueueNode):
    """Free blocks that nobody can find."""

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count


class LaneHolding:
    """What a request holds in one lane: its extents, in the order of its blocks. num_blocks: where its blocks end,
    those among them that are not full and those that it has let go; num_full: where the full ones do; first: before
    which it holds none. states: where states are that are not those after a whole block, or are not kept. places: where
    its prompt can be resumed, in tokens."""

    __slots__ = ("extents", "first", "num_blocks", "num_full", "places", "states")

    def __init__(self) -> None:
        self.extents: list[Extent] = []
        self.first = self.num_blocks = self.num_full = 0
        self.states: list[int] = []
        self.places: tuple[int, ...] = ()


class Extent(QueueNode):
    """Blocks ``first`` to ``last`` (exclusive) of prompts whose run there has ``key``. holders: who has them.

    home: all extents of a lane by their key, among which it is found.
    """

    __slots__ = ("companion", "first", "holders", "home", "key", "last")

    def __init__(self, key: int, first: int, last: int, home: dict[int, list[Extent]]) -> None:
        super().__init__()
        self.key, self.first, self.last = key, first, last
        self.home = home
        self.holders: list[LaneHolding] = []
        self.companion: Junk | None = None


class FreeQueue:
    """The free blocks of a pool of ``num_blocks``. num_free: all of them; num_blank: those in front."""

    def __init__(self, num_blocks: int) -> None:
        self.num_free = self.num_blank = num_blocks
        self._ends = QueueNode()
        self._ends.before = self._ends.after = self._ends

    def free_blank(self, count: int) -> None:
        """Add ``count`` blocks that are taken first."""
        self.num_blank += count
        self.num_free += count

    def free_junk(self, count: int) -> None:
        """Add ``count`` full blocks that nobody can find, behind all others."""
        last = self._ends.before
        if isinstance(last, Junk):
            last.count += count
        else:
            self._append(Junk(count))
        self.num_free += count

    def free(self, extents: Iterable[Extent], weight: int) -> None:
        """Add ``extents``, each of ``weight`` groups, in the order in which they are taken."""
        count = 0
        companion = Junk(0) if weight > 1 else None
        for extent in extents:
            count += extent.last - extent.first
            extent.companion = companion
            self._append(extent)
        self.num_free += count * weight
        if companion is not None and count:
            companion.count = count * (weight - 1)
            self._append(companion)

    def hold(self, extent: Extent, weight: int) -> None:
        """Take ``extent`` out, which is held again."""
        count = extent.last - extent.first
        self._remove(extent)
        self.num_free -= count * weight
        companion = extent.companion
        if companion is not None:
            companion.count -= count * (weight - 1)
            extent.companion = None
            if not companion.count:
                self._remove(companion)

    def stand_beside(self, deeper: Extent, extent: Extent) -> None:
        """``deeper`` was cut off ``extent``: it is taken right before it."""
        before = extent.before
        assert before is not None
        before.after, extent.before = deeper, deeper
        deeper.before, deeper.after, deeper.is_free = before, extent, True

    def take(self, count: int) -> None:
        """Use ``count`` blocks for something else."""
        assert count <= self.num_free, "more blocks than are free"
        self.num_free -= count
        blank = min(count, self.num_blank)
        self.num_blank -= blank
        count -= blank
        while count:
            count -= self._evict(count)

    def _evict(self, count: int) -> int:
        """Take up to ``count`` blocks of the first in the queue. Return how many there were."""
        first = self._ends.after
        if isinstance(first, Junk):
            taken = min(count, first.count)
            first.count -= taken
            if not first.count:
                self._remove(first)
            return taken
        assert isinstance(first, Extent), "the queue is empty"
        taken = min(count, first.last - first.first)
        first.last -= taken
        if first.first == first.last:
            self._remove(first)
            alike = first.home[first.key]
            alike.remove(first)
            if not alike:
                del first.home[first.key]
        return taken

    def _append(self, node: QueueNode) -> None:
        ends = self._ends
        last = ends.before
        assert last is not None
        last.after = ends.before = node
        node.before, node.after, node.is_free = last, ends, True

    @staticmethod
    def _remove(node: QueueNode) -> None:
        before, after = node.before, node.after
        assert before is not None and after is not None
        before.after, after.before = after, before
        node.before = node.after = None
        node.is_free = False
