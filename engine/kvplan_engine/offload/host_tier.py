"""Evicted bundles in host memory, found by name; the least recently used is dropped first. No torch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from kvplan_engine.blocks.block_pool import BlockHash


class FreeSlots:
    """``count`` slots from ``first`` on: those that came back are taken first, the last one before the others.

    Slots that were never taken are two numbers, however many there are.
    """

    def __init__(self, first: int, count: int) -> None:
        self._first, self._next, self._end = first, first, first + count
        self._returned: list[int] = []

    def __len__(self) -> int:
        return len(self._returned) + self._end - self._next

    def take(self, count: int) -> tuple[int, ...]:
        """``count`` of them: there must be as many."""
        assert count <= len(self), "more slots than are free"
        return tuple(self._take() for _ in range(count))

    def _take(self) -> int:
        if self._returned:
            return self._returned.pop()
        self._next += 1
        return self._next - 1

    def give_back(self, slots: tuple[int, ...]) -> None:
        """They are taken again in their order."""
        self._returned.extend(reversed(slots))

    def check(self, in_use: Iterable[int]) -> None:
        """Assert that each slot is either free or once among those ``in_use``."""
        known = sorted(chain(self._returned, in_use))
        assert known == list(range(self._first, self._next)), "host slots are lost or held twice"


@dataclass(frozen=True, slots=True)
class HostRoom:
    """Slots of the host pool for new content. evicted: the names of what had to go for it, with their slots."""

    slots: tuple[int, ...]
    evicted: list[tuple[BlockHash, tuple[int, ...]]]


class HostTier:
    """``num_slots`` slots of the host pool from ``first_slot`` on."""

    def __init__(self, first_slot: int, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = FreeSlots(first_slot, num_slots)
        self._slots_of_hash: OrderedDict[BlockHash, tuple[int, ...]] = OrderedDict()  # least recently used first
        self._pinned: set[BlockHash] = set()

    def __len__(self) -> int:
        return len(self._slots_of_hash)

    @property
    def num_used_slots(self) -> int:
        return self.num_slots - len(self._free)

    def find(self, block_hash: BlockHash) -> tuple[int, ...] | None:
        return self._slots_of_hash.get(block_hash)

    def touch(self, block_hash: BlockHash) -> bool:
        """Mark as just used; returns whether it is here."""
        if block_hash not in self._slots_of_hash:
            return False
        self._slots_of_hash.move_to_end(block_hash)
        return True

    def put(self, block_hash: BlockHash, width: int = 1) -> HostRoom | None:
        """``width`` slots for new content, the least recently used makes room; None where too much is pinned."""
        evicted = self._to_evict(width - len(self._free))
        if evicted is None:
            return None
        for _, slots in evicted:
            self._free.give_back(slots)
        slots = self._free.take(width)
        self._slots_of_hash[block_hash] = slots
        return HostRoom(slots, evicted)

    def _to_evict(self, num_slots: int) -> list[tuple[BlockHash, tuple[int, ...]]] | None:
        """Take the least recently used content of ``num_slots`` slots out; None, and nothing, if that is too much."""
        names: list[BlockHash] = []
        for name, slots in self._slots_of_hash.items():
            if num_slots <= 0:
                break
            if name not in self._pinned:
                names.append(name)
                num_slots -= len(slots)
        if num_slots > 0:
            return None
        return [(name, self._slots_of_hash.pop(name)) for name in names]

    def pin(self, block_hash: BlockHash) -> None:
        """Protect the content until ``unpin_all``: a transfer that reads it is being planned."""
        self._pinned.add(block_hash)
        self._slots_of_hash.move_to_end(block_hash)

    def unpin_all(self) -> None:
        self._pinned.clear()

    def clear(self) -> None:
        """Drop all content."""
        self.unpin_all()
        for slots in self._slots_of_hash.values():
            self._free.give_back(slots)
        self._slots_of_hash.clear()

    def items(self) -> list[tuple[BlockHash, tuple[int, ...]]]:
        """Names with their slots, least recently used first."""
        return list(self._slots_of_hash.items())

    def check(self) -> None:
        """Assert that every slot is free or in one bundle, and that nothing is pinned."""
        self._free.check(chain(*self._slots_of_hash.values()))
        assert not self._pinned, "content is still pinned between two steps"
