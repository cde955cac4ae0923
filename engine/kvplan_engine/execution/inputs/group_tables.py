"""One group's block tables, slots and lengths for the rows of a step; of a group of states its blocks alone.

window 4, block_size 4, bundles of one block, 11 tokens: logical block 1 is the first held
    bundles  [9 1]  first = 1         block_tables[row] = 9 1        seq_lens[row] = 11 - 4
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch

from kvplan_engine.attention.backend import AttentionMetadata, KvSlots
from kvplan_engine.attention.layer_cache import TablePlace
from kvplan_engine.blocks.layout import KvGroup, KvLayout
from kvplan_engine.kernels.states.rows import StateStep
from kvplan_engine.memory.step_buffers import lengths_name, slots_name, tables_name
from kvplan_engine.requests.request import Sequence
from kvplan_engine.requests.step_plan import StepPlan


class FullTables:
    """The index buffers where each logical block is one block of layers that keep all tokens: most models'."""

    def __init__(self, host: Mapping[str, torch.Tensor], block_size: int) -> None:
        self._block_size = block_size
        names = (tables_name(0, 0), slots_name(0, 0), lengths_name(0))
        self._tables, self._slots, self._seq_lens = (host[name].numpy() for name in names)
        # assigning one element of a memoryview takes half the time of an array's
        self._slots_memory, self._lengths_memory, self._tables_memory = (
            array.data for array in (self._slots, self._seq_lens, self._tables)
        )

    def fill_decodes(self, plan: StepPlan) -> None:
        """See GroupTables.fill_decodes."""
        number, size = len(plan.decodes), self._block_size
        self._seq_lens[:number] += 1
        self._slots[:number] += 1
        for row in plan.fresh_rows:
            sequence = plan.decodes[row]
            position, blocks = sequence.num_computed_tokens, sequence.table.blocks
            self._seq_lens[row] = position + 1
            self._slots[row] = blocks[position // size] * size + position % size
            self._tables[row, : len(blocks)] = blocks
        for row, block in zip(plan.grown_rows, plan.grown_blocks, strict=True):
            self._slots_memory[row] = block * size
            self._tables_memory[row, (self._lengths_memory[row] - 1) // size] = block

    def fill_chunks(self, plan: StepPlan, counts: np.ndarray, row_of_token: np.ndarray, positions: np.ndarray) -> None:
        """See GroupTables.fill_chunks."""
        first_row, size = len(plan.decodes), self._block_size
        for row, item in enumerate(plan.chunks, start=first_row):
            blocks = item.sequence.table.blocks
            self._tables[row, : len(blocks)] = blocks
        self._seq_lens[first_row : first_row + len(plan.chunks)] = positions[np.cumsum(counts) - 1] + 1
        blocks_of_tokens = self._tables[first_row + row_of_token, positions // size].astype(np.int64)
        self._slots[first_row : first_row + len(positions)] = blocks_of_tokens * size + positions % size


class GroupTables:
    """Fills the index buffers of group ``index`` in ``host`` memory, as ``BatchBuilder`` fills those of all groups."""

    def __init__(self, host: Mapping[str, torch.Tensor], index: int, group: KvGroup, block_size: int) -> None:
        self._index, self._width, self._block_size = index, group.width, block_size
        self._keeps_all = group.kept.tokens is None
        self._tables = [host[tables_name(index, slot)].numpy() for slot in range(group.width)]
        self._slots = [host[slots_name(index, slot)].numpy() for slot in range(group.width)]
        self._seq_lens = host[lengths_name(index)].numpy()

    def fill_decodes(self, plan: StepPlan) -> None:
        """The rows that decode: one token further than in the last plan, but for the fresh and the grown."""
        number = len(plan.decodes)
        self._seq_lens[:number] += 1
        for slots in self._slots:
            slots[:number] += 1
        for row in plan.fresh_rows:
            self._fill_row(row, plan.decodes[row])
        for row in plan.grown_rows:
            self._fill_row(row, plan.decodes[row], grown=self._keeps_all)

    def _fill_row(self, row: int, sequence: Sequence, *, grown: bool = False) -> None:
        """grown: the row holds this sequence already, but for its last bundle."""
        table = sequence.table.groups[self._index]
        position = sequence.num_computed_tokens - table.first * self._block_size
        column, offset = divmod(position, self._block_size)
        self._seq_lens[row] = position + 1
        self._fill_tables(row, sequence, len(table.bundles) - 1 if grown else 0)
        for tables, slots in zip(self._tables, self._slots, strict=True):
            slots[row] = int(tables[row, column]) * self._block_size + offset

    def _fill_tables(self, row: int, sequence: Sequence, start: int) -> None:
        """The row's blocks, from bundle ``start`` on."""
        bundles = sequence.table.groups[self._index].bundles[start:]
        if self._width == 1:
            self._tables[0][row, start : start + len(bundles)] = bundles
            return
        blocks = np.array([sequence.table.blocks_of(bundle) for bundle in bundles], dtype=np.int32)
        for slot, tables in enumerate(self._tables):
            tables[row, start : start + len(bundles)] = blocks[:, slot]

    def fill_chunks(self, plan: StepPlan, counts: np.ndarray, row_of_token: np.ndarray, positions: np.ndarray) -> None:
        """The other rows. counts: tokens of each. row_of_token, positions: of their tokens, rows from 0."""
        first_row, size = len(plan.decodes), self._block_size
        firsts = np.fromiter(
            (item.sequence.table.groups[self._index].first for item in plan.chunks), np.int64, len(plan.chunks)
        )
        for row, item in enumerate(plan.chunks, start=first_row):
            self._fill_tables(row, item.sequence, 0)
        ends = np.cumsum(counts)
        self._seq_lens[first_row : first_row + len(plan.chunks)] = positions[ends - 1] + 1 - firsts * size
        held = positions - firsts[row_of_token] * size
        tokens = slice(first_row, first_row + len(positions))
        for tables, slots in zip(self._tables, self._slots, strict=True):
            slots[tokens] = tables[first_row + row_of_token, held // size].astype(np.int64) * size + held % size


class StateTables:
    """Fills the block table of group ``index``, a group of states: a row is the one bundle that a sequence holds.

    A sequence that decodes keeps its bundle: what would be copied on write takes a sequence out of its row first.
    """

    def __init__(self, host: Mapping[str, torch.Tensor], index: int) -> None:
        self._index = index
        self._tables = host[tables_name(index, 0)].numpy()

    def fill_decodes(self, plan: StepPlan) -> None:
        """See GroupTables.fill_decodes."""
        for row in plan.fresh_rows:
            self._fill_row(row, plan.decodes[row])

    def fill_chunks(self, plan: StepPlan, counts: np.ndarray, row_of_token: np.ndarray, positions: np.ndarray) -> None:
        """See GroupTables.fill_chunks."""
        for row, item in enumerate(plan.chunks, start=len(plan.decodes)):
            self._fill_row(row, item.sequence)

    def _fill_row(self, row: int, sequence: Sequence) -> None:
        (bundle,) = sequence.table.groups[self._index].bundles
        self._tables[row] = sequence.table.blocks_of(bundle)


# What the layers of each group read of a step, as views of its index buffers.


def metadata_of(
    place: TablePlace, tokens: Mapping[str, torch.Tensor], seqs: Mapping[str, torch.Tensor], max_query_len: int
) -> AttentionMetadata:
    """What the layers at ``place`` read. tokens, seqs: the index buffers, cut to the step's."""
    group, keys, values = place.group, place.key_slot, place.value_slot
    is_apart = keys != values
    return AttentionMetadata(
        slots=KvSlots(tokens[slots_name(group, keys)], tokens[slots_name(group, values)] if is_apart else None),
        block_tables=seqs[tables_name(group, keys)],
        value_tables=seqs[tables_name(group, values)] if is_apart else None,
        seq_lens=seqs[lengths_name(group)],
        query_starts=seqs["query_starts"],
        max_query_len=max_query_len,
    )


def state_tables_name(layout: KvLayout) -> str | None:
    """The buffer with the blocks of each sequence's states; None where no layer has one."""
    return next((tables_name(index, 0) for index, group in enumerate(layout.groups) if group.is_state), None)


def states_of(
    name: str | None, tokens: Mapping[str, torch.Tensor], seqs: Mapping[str, torch.Tensor]
) -> StateStep | None:
    """What the layers with a state read. name: of their block tables; tokens, seqs: as for ``metadata_of``."""
    return None if name is None else StateStep(seqs[name], seqs["query_starts"], tokens["positions"])


def padding_values(places: Iterable[TablePlace], state_tables: str | None) -> dict[str, int]:
    """What the index buffers hold behind a step's last token and sequence, where a larger captured step computes it.

    A valid token and position, no slot to write to, length 0, no state. state_tables: see ``states_of``.
    """
    values = {"token_ids": 0, "positions": 0}
    for place in places:
        for slot in (place.key_slot, place.value_slot):
            values[slots_name(place.group, slot)] = -1
        values[lengths_name(place.group)] = 0
    return values if state_tables is None else values | {state_tables: -1}
