"""Which rows of a step are corrected by which slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

Rows = slice | torch.Tensor
"""Rows of a step: in a row, or their numbers, int64."""


@dataclass(frozen=True, slots=True)
class SlotRows:
    """The rows of one slot."""

    slot: int
    rows: Rows


class StepRows:
    """What the products of a step are corrected with; shared by all of a model's products.

    slots [T] int32: of each row its slot, -1 for none; groups: the same, slot by slot. None between steps, and in a
    step without adapters.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.slots: torch.Tensor | None = None
        self.groups: tuple[SlotRows, ...] = ()

    def clear(self) -> None:
        """No row is corrected."""
        self.slots, self.groups = None, ()

    def fill(self, slots: Sequence[int], counts: Sequence[int]) -> None:
        """slots: of each sequence of the step, -1 for none. counts: how many rows each has."""
        of_rows = np.repeat(np.array(slots, np.int32), np.array(counts, np.int64))
        present = sorted({slot for slot in slots if slot >= 0})
        self.groups = tuple(SlotRows(slot, self._rows(np.flatnonzero(of_rows == slot))) for slot in present)
        self.slots = torch.from_numpy(of_rows).to(self._device, non_blocking=True)

    def _rows(self, numbers: np.ndarray) -> Rows:
        first, last = int(numbers[0]), int(numbers[-1])
        if last - first + 1 == len(numbers):
            return slice(first, last + 1)
        return torch.from_numpy(numbers).to(self._device, non_blocking=True)
