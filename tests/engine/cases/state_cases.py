"""States in a pool, and ragged steps over them, for the kernels of every device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kvplan_engine.kernels.states.rows import StateRows, StateStep

LENGTHS = (1, 5, 0, 1, 23, 2, 1)
"""New tokens of each sequence of a step: some that decode, one that has nothing to do."""
NEW = (0, 4)
"""Which of them are at their beginning."""
NOBODY = 5
"""A row of the tables without a sequence."""


@dataclass(frozen=True, slots=True)
class StateCase:
    """A pool with one part's state of each sequence, and the step. before: its bytes when it was made."""

    rows: StateRows
    step: StateStep
    before: torch.Tensor

    def again(self) -> StateCase:
        """The same states in a pool of its own."""
        blocks = self.before.clone()
        return replace(self, rows=replace(self.rows, blocks=blocks))

    def states(self) -> list[torch.Tensor]:
        """Of each sequence, as float32."""
        return [self.rows.load(table).float() for sequence, table in enumerate(self.step.tables) if sequence != NOBODY]


def state_case(
    num_rows: int, row_elements: int, dtype: torch.dtype, *, rows_per_block: int = 5, seed: int = 0
) -> StateCase:
    """States of ordinary size for sequences that go on, and NaN wherever nobody should look."""
    generator = torch.Generator().manual_seed(seed)
    row_bytes = row_elements * dtype.itemsize
    offset = 2 * row_bytes  # row 0 begins in the middle of the second block
    block_bytes = -(-(rows_per_block * row_bytes + 6) // 16) * 16
    width = 2 + -(-num_rows // rows_per_block)
    blocks = torch.full((len(LENGTHS) * width + 3, block_bytes), 0xFF, dtype=torch.uint8)  # NaN in both dtypes
    order = torch.randperm(len(blocks), generator=generator)[: len(LENGTHS) * width]
    tables = order.to(torch.int32).view(len(LENGTHS), width).clone()
    rows = StateRows(blocks, dtype, num_rows, row_elements, slot=1, offset=offset)
    for sequence, table in enumerate(tables):
        if sequence not in (*NEW, NOBODY):
            rows.store(table, torch.randn(num_rows, row_elements, generator=generator))
    tables[NOBODY, 0] = -1
    starts = torch.tensor([0, *LENGTHS]).cumsum(0)
    positions = [torch.arange(length) + (0 if s in NEW else 7 * s + 1) for s, length in enumerate(LENGTHS)]
    return StateCase(rows, StateStep(tables, starts.to(torch.int32), torch.cat(positions)), blocks.clone())


def random_rows(width: int, dtype: torch.dtype, *, seed: int) -> torch.Tensor:
    """[T, width] of a step's tokens, in rows that are further apart, with NaN between them."""
    generator = torch.Generator().manual_seed(seed)
    room = torch.full((sum(LENGTHS), width + 3), float("nan"), dtype=dtype)
    room[:, :width] = torch.randn(sum(LENGTHS), width, generator=generator).to(dtype)
    return room[:, :width]


def rows_of_sequences() -> torch.Tensor:
    """Of the step's tokens those that belong to a sequence, [T] bool."""
    owners = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    return owners != NOBODY


def assert_only_rows_changed(case: StateCase) -> None:
    """No byte of the pool changed that is not part of a running sequence's state."""
    mask = torch.zeros_like(case.before)
    marks = replace(case.rows, blocks=mask)
    ones = torch.full((case.rows.num_rows, case.rows.row_bytes), 1, dtype=torch.uint8)
    for sequence, begin, end in case.step.sequences():
        assert end > begin
        as_bytes = replace(marks, dtype=torch.uint8, row_elements=case.rows.row_bytes)
        as_bytes.store(case.step.tables[sequence], ones)
    changed = case.rows.blocks != case.before
    assert not (changed & (mask == 0)).any()
