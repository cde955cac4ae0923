"""One sequence's block tables: logical block i of the sequence -> physical blocks of the pool. No torch.

block_size 4, 10 tokens:    logical   0        1        2
                            tokens    0 1 2 3  4 5 6 7  8 9 . .      <- two empty slots: all that paging wastes
                            physical  7        2        9

Each group of layers has a table of its own, whose entries are bundles. A window gives back what lies before it; a state
is one bundle for all tokens. With a window of 4 the sequence above needs, for its eleventh token:

                            full      7        2        9
                            window             5        1       first = 1
                            state     3
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from operator import mul
from typing import NamedTuple

from kvplan_engine.blocks.block_pool import BlockPool, NoFreeBlocks
from kvplan_engine.blocks.layout import KvGroup, KvLayout

# What a sequence holds, or can start from, in one group of layers. No torch.


class FoundBundles(NamedTuple):
    """What a sequence starts from in one group: the bundles from logical block ``first`` on.

    None: the content is not in the pool but in a tier or in swap space.
    """

    first: int
    bundles: list[int | None]


class GroupTable:
    """What a sequence holds in one group: ``bundles``, the first of them that of logical block ``first``."""

    __slots__ = ("bundles", "first", "group")

    def __init__(self, group: KvGroup, bundles: list[int], first: int = 0) -> None:
        self.group = group
        self.bundles = bundles
        self.first = first


def num_blocks_to_start(pool: BlockPool, found: Sequence[FoundBundles], num_held: int) -> int:
    """How many free blocks a sequence uses up that adopts ``found`` and then holds ``num_held`` blocks in all.

    A state that somebody uses does not help: it will be copied.
    """
    number = num_held
    for group, each in zip(pool.layout.groups, found, strict=True):
        if each.bundles and not group.is_state:
            in_use = sum(bundle is not None and pool.reference_count(bundle) > 0 for bundle in each.bundles)
            number -= group.width * in_use
    return number


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """A copy-on-write of one block, all layers, which is carried out before the step."""

    source: int
    target: int


class BlockTable:
    """The bundles of one sequence, group by group; it owns one reference to each of them.

    end: how many logical blocks it reaches, with those that were left behind. version: changes whenever a bundle is
    replaced or left behind, but not when bundles are appended.
    """

    __slots__ = ("_pool", "end", "groups", "version")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.groups = [GroupTable(group, []) for group in pool.layout.groups]
        self.end = 0
        self.version = 0

    def __len__(self) -> int:
        return self.end

    @property
    def blocks(self) -> list[int]:
        """The bundles of the first group: all there are where all layers keep the same tokens."""
        return self.groups[0].bundles

    @property
    def all_bundles(self) -> list[int]:
        """Bundles of all groups, sorted by logical block; a state comes first."""
        if len(self.groups) == 1:
            return self.groups[0].bundles
        states = [table.bundles for table in self.groups if table.group.is_state]
        pages = [reversed(table.bundles) for table in self.groups if not table.group.is_state]
        deepest_first = [bundle for row in zip_longest(*pages) for bundle in row if bundle is not None]
        return [*chain(*states), *reversed(deepest_first)]

    def blocks_of(self, bundle: int) -> tuple[int, ...]:
        """All blocks of one of its bundles."""
        return self._pool.blocks_of(bundle)

    # ---- growing

    def num_new_blocks(self, first_token: int, num_tokens: int) -> int:
        """How many blocks ``reserve`` must take for ``num_tokens`` tokens in all, writing from ``first_token`` on.

        A copy of a state that nobody else holds is not counted: without room for it, the state itself is used.
        """
        layout = self._pool.layout
        number = max(-(-num_tokens // layout.block_size) - self.end, 0) * layout.token_blocks
        if first_token % layout.block_size == 0 and not layout.has_states:
            return number  # nothing is partly filled
        for table in self.groups:
            if table.group.is_state:
                number += table.group.width * (not table.bundles or self._is_shared(table.bundles[0]))
            elif self._shared_to_write(table, first_token) is not None:
                number += table.group.width
        return number

    def reserve(self, first_token: int, num_tokens: int) -> list[BlockCopy]:
        """Make room for ``num_tokens`` tokens in all, of which those from ``first_token`` on are written now.

        What they do not see is given back. A shared bundle is replaced by one of its own before it is written
        (copy-on-write): the copies to make are returned. NoFreeBlocks when the pool has too few; then nothing has
        changed but for what was given back.
        """
        pool, layout = self._pool, self._pool.layout
        if layout.forgets:
            self.leave_behind(first_token)
        number = -(-num_tokens // layout.block_size) - self.end
        is_aligned = first_token % layout.block_size == 0 and not layout.has_states  # nothing is partly filled
        needed = number * layout.token_blocks if is_aligned else self.num_new_blocks(first_token, num_tokens)
        if needed > pool.num_free_blocks:
            raise NoFreeBlocks
        if number > 0:
            self._append(number)
        if is_aligned:
            return []
        return [copy for table in self.groups for copy in self._own(table, first_token)]

    def _append(self, number: int) -> None:
        for table in self.groups:
            missing = (not table.bundles) if table.group.is_state else number
            table.bundles += self._pool.allocate_bundles(missing, table.group.width)
        self._reach(self.end + number)

    def leave_behind(self, first_token: int) -> None:
        """Give back the bundles that no token from ``first_token`` on sees."""
        size = self._pool.block_size
        for place in self._pool.layout.forgetful:
            table = self.groups[place]
            first = table.group.first_kept_token(first_token) // size
            number = first - table.first
            if number > 0:
                self._pool.free(table.bundles[:number])
                del table.bundles[:number]
                table.first = first
                self.version += 1

    def trim(self, num_tokens: int) -> None:
        """Give back what lies behind the first ``num_tokens`` tokens, the blocks of drafts that were not accepted."""
        number = self.end - -(-num_tokens // self._pool.block_size)
        if number <= 0:
            return
        for table in self.groups:
            if not table.group.is_state:
                self._pool.free(table.bundles[-number:])
                del table.bundles[-number:]
        self._reach(self.end - number)
        self.version += 1

    def _reach(self, end: int) -> None:
        self._pool.num_logical_blocks += end - self.end
        self.end = end

    # ---- copy-on-write

    def _own(self, table: GroupTable, first_token: int) -> Iterator[BlockCopy]:
        """Replace what would be written from ``first_token`` on and is not this sequence's alone."""
        pool = self._pool
        index = self._state_to_replace(table) if table.group.is_state else self._shared_to_write(table, first_token)
        if index is None:
            return
        source = table.bundles[index]
        (target,) = pool.allocate_bundles(1, table.group.width)
        table.bundles[index] = target
        self.version += 1
        yield from map(BlockCopy, pool.blocks_of(source), pool.blocks_of(target))
        pool.free([source])

    def _shared_to_write(self, table: GroupTable, first_token: int) -> int | None:
        """Index of the bundle to copy, if any. Only a partly filled one can be: full ones are never written again."""
        size = self._pool.block_size
        index = first_token // size - table.first
        if first_token % size == 0 or index >= len(table.bundles):
            return None
        return index if self._is_shared(table.bundles[index]) else None

    def _state_to_replace(self, table: GroupTable) -> int | None:
        """A state is written in every step. Without room for a copy, one that only the cache holds is taken from it."""
        pool, bundle = self._pool, table.bundles[0]
        if not self._is_shared(bundle):
            if not pool.is_cached(bundle):
                return None
            if pool.num_free_blocks < table.group.width:
                pool.uncache(bundle)
                return None
        return 0

    def _is_shared(self, bundle: int) -> bool:
        return self._pool.reference_count(bundle) > 1

    # ---- all at once

    def fork(self) -> BlockTable:
        """A second table over the same bundles; each gets another reference."""
        child = BlockTable(self._pool)
        for table, own in zip(self.groups, child.groups, strict=True):
            self._pool.share(table.bundles)
            own.bundles, own.first = list(table.bundles), table.first
        child._reach(self.end)
        return child

    def adopt(self, found: Sequence[FoundBundles], end: int) -> list[int]:
        """Fill an empty table, which then reaches ``end`` logical blocks, with what was found for each group.

        Bundles of the pool are shared; for what lies elsewhere new ones are taken and returned, in order.
        NoFreeBlocks when the pool has too few; then nothing has changed.
        """
        assert not self.end
        if not end:
            return []
        in_pool = [bundle for each in found for bundle in each.bundles if bundle is not None]
        self._pool.share(in_pool)
        taken: list[int] = []
        if len(in_pool) < sum(len(each.bundles) for each in found):
            try:
                taken = self._take_missing(found)
            except NoFreeBlocks:
                self._pool.free(in_pool)
                raise
        new = iter(taken)
        for table, each in zip(self.groups, found, strict=True):
            table.bundles = [next(new) if bundle is None else bundle for bundle in each.bundles]
            table.first = each.first
        self._reach(end)
        return taken

    def _take_missing(self, found: Sequence[FoundBundles]) -> list[int]:
        """New bundles for those that are not in the pool, group by group."""
        numbers = [each.bundles.count(None) for each in found]
        pool, widths = self._pool, self._pool.layout.widths
        if sum(map(mul, numbers, widths)) > pool.num_free_blocks:
            raise NoFreeBlocks
        return list(chain(*map(pool.allocate_bundles, numbers, widths)))

    def hold(self, numbers: Sequence[int], end: int, first_token: int) -> None:
        """Reserve for a whole life: ``numbers`` bundles in each group, over which its tokens move from now on.

        They reach ``end`` logical blocks. In a window, what lies before ``first_token``'s is written again behind.
        """
        for table, number in zip(self.groups, numbers, strict=True):
            missing = max(number - len(table.bundles), 0)
            table.bundles += self._pool.allocate_bundles(missing, table.group.width)
            behind = table.group.first_kept_token(first_token) // self._pool.block_size - table.first
            if behind > 0:
                table.bundles = table.bundles[behind:] + table.bundles[:behind]
                table.first += behind
                self.version += 1
        self._reach(end)

    def release(self) -> None:
        """Give all bundles back."""
        self._pool.free(self.all_bundles)
        for table in self.groups:
            table.bundles, table.first = [], 0
        self._reach(0)
        self.version += 1

    def check(self, num_computed_tokens: int) -> None:
        """Assert that every group has the bundles that the next token sees."""
        size = self._pool.block_size
        assert num_computed_tokens <= self.end * size, "computed tokens without a block"
        for table in self.groups:
            if table.group.is_state:
                assert len(table.bundles) == 1, "a running sequence without its state"
                continue
            assert table.first <= table.group.first_kept_token(num_computed_tokens) // size, "a token is missed"
            needed = -(-num_computed_tokens // size) - table.first
            assert len(table.bundles) >= needed, "computed tokens without a bundle"


def grow_each(pool: BlockPool, tables: Sequence[BlockTable]) -> None:
    """One more logical block for each of ``tables``. The pool must have that many free blocks."""
    number = len(tables)
    for index, group in enumerate(pool.layout.groups):
        if not group.is_state:
            for table, bundle in zip(tables, pool.allocate_bundles(number, group.width), strict=True):
                table.groups[index].bundles.append(bundle)
    for table in tables:
        table.end += 1
    pool.num_logical_blocks += number


# What the layout of blocks costs: bytes that sequences hold, beside those that the layers keep of them. No torch.
#
# Counted over whole logical blocks: empty slots at the end of a sequence are paging's waste, not the layout's. What is
# left is padding (parts that do not fill a block), tokens that have left a window and are given back only with the next
# block, and a second state that a sequence holds for a step.


def held_bytes(table: BlockTable, layout: KvLayout) -> int:
    """Bytes of all blocks in ``table``; what it shares counts as its own."""
    return layout.block_bytes * sum(each.group.width * len(each.bundles) for each in table.groups)


def needed_bytes(layout: KvLayout, num_computed_tokens: int, num_slots: int) -> float:
    """Bytes that the architecture keeps of ``num_slots`` tokens, when ``num_computed_tokens`` have been computed."""
    return sum(_group_bytes(group, layout.block_size, num_computed_tokens, num_slots) for group in layout.groups)


def _group_bytes(group: KvGroup, block_size: int, num_computed_tokens: int, num_slots: int) -> float:
    if group.is_state:
        return group.unit_bytes
    return group.unit_bytes * (num_slots - group.first_kept_token(num_computed_tokens)) / block_size


def layout_waste_pct(layout: KvLayout, tables: Iterable[tuple[BlockTable, int]]) -> float | None:
    """Bytes held beyond those that are needed, in percent of the latter; None where nothing is held.

    tables: each sequence's, with how many of its tokens had been computed when its blocks were taken.
    """
    held, needed = 0, 0.0
    for table, num_computed_tokens in tables:
        held += held_bytes(table, layout)
        needed += needed_bytes(layout, num_computed_tokens, len(table) * layout.block_size)
    return 100 * (held / needed - 1) if needed else None
