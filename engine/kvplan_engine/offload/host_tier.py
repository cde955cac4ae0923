"""Evicted blocks in host memory, found by hash; the least recently used is dropped first. No torch."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from kvplan_engine.blocks.block_pool import BlockHash


@dataclass(frozen=True, slots=True)
class HostSlot:
    """A slot of the host pool for new content. evicted: the hash of the content it replaces, if any."""

    slot: int
    evicted: BlockHash | None


class HostTier:
    """``num_slots`` slots of the host pool from ``first_slot`` on."""

    def __init__(self, first_slot: int, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(first_slot + num_slots - 1, first_slot - 1, -1))
        self._slot_of_hash: OrderedDict[BlockHash, int] = OrderedDict()  # least recently used first
        self._pinned: set[BlockHash] = set()

    def __len__(self) -> int:
        return len(self._slot_of_hash)

    def find(self, block_hash: BlockHash) -> int | None:
        return self._slot_of_hash.get(block_hash)

    def touch(self, block_hash: BlockHash) -> bool:
        """Mark as just used; returns whether it is here."""
        if block_hash not in self._slot_of_hash:
            return False
        self._slot_of_hash.move_to_end(block_hash)
        return True

    def put(self, block_hash: BlockHash) -> HostSlot | None:
        """A slot for new content: a free one, or the least recently used; None when all are pinned."""
        if self._free:
            room = HostSlot(self._free.pop(), None)
        else:
            oldest = next((known for known in self._slot_of_hash if known not in self._pinned), None)
            if oldest is None:
                return None
            room = HostSlot(self._slot_of_hash.pop(oldest), oldest)
        self._slot_of_hash[block_hash] = room.slot
        return room

    def pin(self, block_hash: BlockHash) -> None:
        """Protect the content until ``unpin_all``: a transfer that reads it is being planned."""
        self._pinned.add(block_hash)
        self._slot_of_hash.move_to_end(block_hash)

    def unpin_all(self) -> None:
        self._pinned.clear()

    def items(self) -> list[tuple[BlockHash, int]]:
        """Hashes with their slots, least recently used first."""
        return list(self._slot_of_hash.items())

    def check(self, last_slot: int) -> None:
        """Assert that every slot below ``last_slot`` is free or holds one hash, and that nothing is pinned."""
        slots = sorted([*self._free, *self._slot_of_hash.values()])
        assert slots == list(range(last_slot - self.num_slots, last_slot)), "host slots are lost or held twice"
        assert not self._pinned, "content is still pinned between two steps"
