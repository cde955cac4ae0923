"""Swap space: the KV of preempted sequences in host memory, so that it need not be recomputed. No torch.

A swapped sequence holds host slots and no pool blocks. Blocks it shared with others stay with them; it takes a copy.
A full block never changes as long as it lives, so one copy of it serves every sequence that had it:

    samples A and B share block 4          A goes:  4 -> slot 0                 B keeps block 4
                                           B goes:  nothing to copy             slot 0 is held twice, block 4 is free
                                           A comes: slot 0 -> block 6           (or block 4 itself, if still free)
                                           B comes: nothing to copy             block 6 is shared again
A pool block is identified by its number and its generation, which counts how often the pool has handed it out: the same
generation means the same content.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan_engine.blocks.block_pool import BlockPool, NoFreeBlocks
from kvplan_engine.blocks.block_table import BlockTable
from kvplan_engine.blocks.transfers import FromHost, ToHost, TransferLog


@dataclass(frozen=True, slots=True)
class _Origin:
    """The content of a full pool block since the pool handed it out for the ``generation``-th time."""

    block: int
    generation: int


class SwapSpace:
    """The first ``num_slots`` slots of the host pool; moves block tables out of ``pool`` and back in."""

    def __init__(self, pool: BlockPool, num_slots: int, log: TransferLog) -> None:
        self.num_slots = num_slots
        self._pool = pool
        self._log = log
        self._free = list(range(num_slots - 1, -1, -1))
        self._holders = [0] * num_slots
        self._origin_of_slot: dict[int, _Origin] = {}
        self._slot_of_origin: dict[_Origin, int] = {}
        self.num_blocks_out = 0
        self.num_blocks_in = 0

    @property
    def num_free_slots(self) -> int:
        return len(self._free)

    # ---- out

    def num_blocks_to_copy(self, table: BlockTable, num_tokens: int) -> int:
        """How many slots swapping out the first ``num_tokens`` tokens of ``table`` would take."""
        return sum(slot is None for slot in self._known_slots(table, num_tokens))

    def swap_out(self, table: BlockTable, num_tokens: int) -> list[int] | None:
        """Copy the blocks of the first ``num_tokens`` tokens to slots and release the table; returns the slots.

        None when too few slots are free; then nothing has changed.
        """
        slots: list[int] = []
        known = self._known_slots(table, num_tokens)
        if known.count(None) > len(self._free):
            return None
        num_full = num_tokens // self._pool.block_size
        for index, slot in enumerate(known):
            if slot is None:
                slot = self._copy_out(table.blocks[index], is_full=index < num_full)
            self._holders[slot] += 1
            slots.append(slot)
        table.release()
        return slots

    def _known_slots(self, table: BlockTable, num_tokens: int) -> list[int | None]:
        """For each block of the first ``num_tokens`` tokens: the slot that already holds a copy of it, or None."""
        size = self._pool.block_size
        num_blocks, num_full = -(-num_tokens // size), num_tokens // size
        full = table.blocks[:num_full]
        known = [self._slot_of_origin.get(self._origin(block)) for block in full]
        return known + [None] * (num_blocks - num_full)  # the last block, partly filled, may still grow

    def _copy_out(self, block: int, *, is_full: bool) -> int:
        slot = self._free.pop()
        if is_full:
            self._remember(slot, self._origin(block))
        self._log.add(ToHost(block, slot))
        self.num_blocks_out += 1
        return slot

    # ---- back in

    def num_blocks_to_take(self, slots: list[int]) -> int:
        """How many of the pool's free blocks swapping ``slots`` in would use."""
        kept = [self._kept_block(slot) for slot in slots]
        return sum(block is None or self._pool.reference_count(block) == 0 for block in kept)

    def swap_in(self, table: BlockTable, slots: list[int]) -> None:
        """Fill an empty ``table`` from ``slots`` and release these. NoFreeBlocks: nothing has changed."""
        kept = [self._kept_block(slot) for slot in slots]
        still_there = [block for block in kept if block is not None]
        self._pool.share(still_there)
        try:
            new_blocks = self._pool.allocate(len(slots) - len(still_there))
        except NoFreeBlocks:
            self._pool.free(still_there)
            raise
        remaining = iter(new_blocks)
        table.blocks = [next(remaining) if block is None else block for block in kept]
        for slot, block, kept_block in zip(slots, table.blocks, kept, strict=True):
            if kept_block is None:
                self._log.add(FromHost(slot, block))
                if slot in self._origin_of_slot:
                    self._remember(slot, self._origin(block))
        self.num_blocks_in += len(new_blocks)
        self.release(slots)

    def _kept_block(self, slot: int) -> int | None:
        """The pool block, in use or free, that still holds the content of ``slot``; None if there is none."""
        origin = self._origin_of_slot.get(slot)
        if origin is None or self._pool.generation(origin.block) != origin.generation:
            return None
        return origin.block

    def release(self, slots: list[int]) -> None:
        """Drop one hold on each slot."""
        for slot in slots:
            self._holders[slot] -= 1
            if self._holders[slot] == 0:
                origin = self._origin_of_slot.pop(slot, None)
                if origin is not None:
                    del self._slot_of_origin[origin]
                self._free.append(slot)

    # ---- which slot is a copy of which block

    def _origin(self, block: int) -> _Origin:
        return _Origin(block, self._pool.generation(block))

    def _remember(self, slot: int, origin: _Origin) -> None:
        previous = self._origin_of_slot.pop(slot, None)
        if previous is not None:
            del self._slot_of_origin[previous]
        self._origin_of_slot[slot] = origin
        self._slot_of_origin[origin] = slot

    def check(self, held: list[list[int]]) -> None:
        """Assert that the slots held are exactly those of the swapped sequences."""
        counts = [0] * self.num_slots
        for slots in held:
            for slot in slots:
                counts[slot] += 1
        assert counts == self._holders, "slot holders != swapped sequences"
        assert sorted(self._free) == [slot for slot, count in enumerate(counts) if count == 0], "free slots"
        assert {slot: origin for origin, slot in self._slot_of_origin.items()} == self._origin_of_slot
