"""Where a layer's state lies in the pool, and the sequences whose states a step moves on.

A state is rows of equal size. They fill the blocks of a sequence's bundle in order, from the row's first place on; one
that does not fit begins the next block, so a row never straddles two:

    row_bytes 32, block_bytes 80, row 0 in slot 1 at byte 32, bundle [7 2 9 4]
      slot 0  7: other parts          slot 1  2: ....0          slot 2  9: 1 2 .          slot 3  4: 3 ..
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class StateStep:
    """Views into the workspace of one step, for S sequences with T new tokens in all.

    tables [S, width] int32: the blocks of each sequence's states; -1 in the first column for a row without a sequence.
    query_starts [S + 1] int32: sequence s computes the rows ``query_starts[s] : query_starts[s + 1]`` of the step.
    positions [T] int64: of the new tokens. A sequence whose first new token is at position 0 starts from a state of
    zeros, whatever its blocks hold; others go on from the state in them. Afterwards the blocks hold the state behind
    the step's tokens.
    """

    tables: torch.Tensor
    query_starts: torch.Tensor
    positions: torch.Tensor

    @property
    def num_seqs(self) -> int:
        return self.tables.shape[0]

    @property
    def num_tokens(self) -> int:
        return self.positions.shape[0]

    def sequences(self) -> list[tuple[int, int, int]]:
        """(s, first row, row behind the last) of each sequence that has tokens in the step."""
        starts, firsts = self.query_starts.tolist(), self.tables[:, 0].tolist()
        return [
            (sequence, starts[sequence], starts[sequence + 1])
            for sequence, block in enumerate(firsts)
            if block >= 0 and starts[sequence + 1] > starts[sequence]
        ]

    def is_new(self, first_row: int) -> bool:
        """Whether the sequence whose new tokens begin at ``first_row`` starts from zeros."""
        return int(self.positions[first_row]) == 0


@dataclass(frozen=True, slots=True)
class StateRows:
    """One part of one layer's state, for all sequences: views of the pool.

    blocks [num_blocks, block_bytes] uint8. num_rows rows of ``row_elements`` elements of ``dtype``; row 0 lies in block
    ``slot`` of a bundle, ``offset`` bytes from its start.
    """

    blocks: torch.Tensor
    dtype: torch.dtype
    num_rows: int
    row_elements: int
    slot: int
    offset: int

    @property
    def row_bytes(self) -> int:
        return self.row_elements * self.dtype.itemsize

    def load(self, blocks: torch.Tensor) -> torch.Tensor:
        """A copy [num_rows, row_elements] of the state in the bundle ``blocks`` [width]."""
        return self._elements()[self._indices(blocks)]

    def store(self, blocks: torch.Tensor, state: torch.Tensor) -> None:
        """Write ``state`` [num_rows, row_elements] into the bundle ``blocks`` [width]."""
        self._elements()[self._indices(blocks)] = state.to(self.dtype)

    def _elements(self) -> torch.Tensor:
        return self.blocks.view(-1).view(self.dtype)

    def _indices(self, blocks: torch.Tensor) -> torch.Tensor:
        """[num_rows, row_elements]: of the bundle's elements in the pool."""
        slots, offsets = self._places()
        starts = blocks[slots].long() * self.blocks.shape[1] + offsets
        columns = torch.arange(self.row_elements, device=blocks.device)
        return (starts // self.dtype.itemsize)[:, None] + columns

    def _places(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return of each row its slot and its offset in bytes, [num_rows] int64 each."""
        block_bytes, size = self.blocks.shape[1], self.row_bytes
        row = torch.arange(self.num_rows, device=self.blocks.device)
        num_first = (block_bytes - self.offset) // size  # rows in the first block
        num_each = block_bytes // size
        behind = row - num_first
        is_first = behind < 0
        slots = torch.where(is_first, self.slot, self.slot + 1 + behind // num_each)
        return slots, torch.where(is_first, self.offset + row * size, behind % num_each * size)
