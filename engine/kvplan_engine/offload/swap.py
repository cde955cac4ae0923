"""Swap space: the KV of preempted sequences in host memory, so that it need not be recomputed. No torch.

A swapped sequence holds host slots and no pool blocks. Blocks it shared with others stay with them; it takes a copy.
A full block never changes as long as it lives, so one copy of it serves every sequence that had it:

    samples A and B share block 4          A goes:  4 -> slot 0                 B keeps block 4
                                           B goes:  nothing to copy             slot 0 is held twice, block 4 is free
                                           A comes: slot 0 -> block 6           (or block 4 itself, if still free)
                                           B comes: nothing to copy             block 6 is shared again
A pool block is identified by its number and its generation, which counts how often the pool has handed it out: the same
generation means the same content. Where a bundle has several blocks, its slots are a bundle too, known by the first.
A state, like a block that is partly filled, goes on changing: each sequence takes a copy of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvplan_engine.blocks.block_pool import BlockPool
from kvplan_engine.blocks.block_table import BlockTable, FoundBundles, GroupTable
from kvplan_engine.blocks.transfers import FromHost, SwappedGroup, ToHost, TransferLog
from kvplan_engine.offload.host_tier import FreeSlots


@dataclass(frozen=True, slots=True)
class _Origin:
    """The content of a full bundle since the pool handed it out for the ``generation``-th time."""

    block: int
    generation: int


class SwapSpace:
    """The first ``num_slots`` slots of the host pool; moves block tables out of ``pool`` and back in."""

    def __init__(self, pool: BlockPool, num_slots: int, log: TransferLog) -> None:
        self.num_slots = num_slots
        self._pool = pool
        self._log = log
        self._free = FreeSlots(0, num_slots)
        self._holders: Counter[int] = Counter()
        self._bundles: dict[int, tuple[int, ...]] = {}  # those of several slots, by their first
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
        return sum(each.group.width * self._known_slots(each, num_tokens).count(None) for each in table.groups)

    def num_blocks_back(self, num_tokens: int) -> int:
        """How many blocks a sequence that has computed ``num_tokens`` tokens needs back, if all were overwritten."""
        return self._pool.layout.blocks_held(num_tokens, num_tokens)

    def swap_out(self, table: BlockTable, num_tokens: int) -> list[SwappedGroup] | None:
        """Copy what the token behind the first ``num_tokens`` sees to slots, and release the table; the slots by group.

        None when too few slots are free; then nothing has been copied or released.
        """
        table.leave_behind(num_tokens)
        if self.num_blocks_to_copy(table, num_tokens) > len(self._free):
            return None
        swapped = [SwappedGroup(each.first, self._hold(each, num_tokens)) for each in table.groups]
        table.release()
        return swapped

    def _hold(self, table: GroupTable, num_tokens: int) -> list[int]:
        """The slots of ``table``, copied to where there is no copy yet."""
        slots = []
        num_full = self._num_full(table, num_tokens)
        for index, slot in enumerate(self._known_slots(table, num_tokens)):
            if slot is None:
                slot = self._copy_out(table.bundles[index], is_full=index < num_full)
            self._holders[slot] += 1
            slots.append(slot)
        return slots

    def _num_full(self, table: GroupTable, num_tokens: int) -> int:
        """How many bundles of ``table`` are full, so that they never change."""
        return 0 if table.group.is_state else num_tokens // self._pool.block_size - table.first

    def _known_slots(self, table: GroupTable, num_tokens: int) -> list[int | None]:
        """Return of each bundle of the first ``num_tokens`` tokens the slot that already has a copy of it, or None."""
        if table.group.is_state:
            return [None] * len(table.bundles)
        num_full = self._num_full(table, num_tokens)
        num_bundles = -(-num_tokens // self._pool.block_size) - table.first
        known = [self._slot_of_origin.get(self._origin(bundle)) for bundle in table.bundles[:num_full]]
        return known + [None] * (num_bundles - num_full)  # the last one, partly filled, may still grow

    def _copy_out(self, bundle: int, *, is_full: bool) -> int:
        blocks = self._pool.blocks_of(bundle)
        slots = self._free.take(len(blocks))
        if len(slots) > 1:
            self._bundles[slots[0]] = slots
        if is_full:
            self._remember(slots[0], self._origin(bundle))
        for block, slot in zip(blocks, slots, strict=True):
            self._log.add(ToHost(block, slot))
        self.num_blocks_out += len(blocks)
        return slots[0]

    # ---- back in

    def find(self, swapped: Sequence[SwappedGroup]) -> list[FoundBundles]:
        """What of ``swapped`` is in the pool still: nobody has taken the blocks, or others share them."""
        return [FoundBundles(each.first, [self._kept_block(slot) for slot in each.slots]) for each in swapped]

    def swap_in(self, table: BlockTable, swapped: Sequence[SwappedGroup], num_tokens: int) -> None:
        """Fill an empty ``table`` with ``num_tokens`` tokens from slots and release these. NoFreeBlocks: no change."""
        found = self.find(swapped)
        table.adopt(found, -(-num_tokens // self._pool.block_size))
        for own, each, before in zip(table.groups, swapped, found, strict=True):
            for slot, bundle, kept in zip(each.slots, own.bundles, before.bundles, strict=True):
                if kept is None:
                    self._copy_in(slot, bundle)
        self.release(swapped)

    def _copy_in(self, first_slot: int, bundle: int) -> None:
        blocks = self._pool.blocks_of(bundle)
        for slot, block in zip(self._slots_of(first_slot), blocks, strict=True):
            self._log.add(FromHost(slot, block))
        self.num_blocks_in += len(blocks)
        if first_slot in self._origin_of_slot:
            self._remember(first_slot, self._origin(bundle))

    def _kept_block(self, slot: int) -> int | None:
        """The pool's bundle, in use or free, that still holds the content of ``slot``; None if there is none."""
        origin = self._origin_of_slot.get(slot)
        if origin is None or self._pool.generation(origin.block) != origin.generation:
            return None
        return origin.block

    def release(self, swapped: Iterable[SwappedGroup]) -> None:
        """Drop one hold on each slot."""
        for slot in (slot for each in swapped for slot in each.slots):
            self._holders[slot] -= 1
            if self._holders[slot] == 0:
                del self._holders[slot]
                origin = self._origin_of_slot.pop(slot, None)
                if origin is not None:
                    del self._slot_of_origin[origin]
                self._free.give_back(self._slots_of(slot))
                self._bundles.pop(slot, None)

    # ---- which slot is a copy of which block

    def _slots_of(self, slot: int) -> tuple[int, ...]:
        return self._bundles.get(slot) or (slot,)

    def _origin(self, bundle: int) -> _Origin:
        return _Origin(bundle, self._pool.generation(bundle))

    def _remember(self, slot: int, origin: _Origin) -> None:
        previous = self._origin_of_slot.pop(slot, None)
        if previous is not None:
            del self._slot_of_origin[previous]
        self._origin_of_slot[slot] = origin
        self._slot_of_origin[origin] = slot

    def check(self, held: Iterable[Sequence[SwappedGroup]]) -> None:
        """Assert that the slots held are exactly those of the swapped sequences."""
        counts = Counter(slot for swapped in held for each in swapped for slot in each.slots)
        assert counts == self._holders, "slot holders != swapped sequences"
        self._free.check(slot for first in counts for slot in self._slots_of(first))
        assert {slot: origin for origin, slot in self._slot_of_origin.items()} == self._origin_of_slot
