"""Which rows of a step are corrected by which slot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch

from kvplan_engine.kernels.lora import LoraRows
from kvplan_engine.kernels.lora_groups import ROWS_OF_A_GROUP


class RowsPlace(Protocol):
    """Where the groups of a step lie."""

    def send(self, rows: np.ndarray, slots: np.ndarray) -> LoraRows:
        """rows int32 [groups, ROWS_OF_A_GROUP], slots int32 [groups], as kernels find them."""
        ...

    def clear(self) -> None:
        """A step without adapters."""
        ...


class _NewRows:
    """The place for a device whose steps wait for their inputs: tensors of each step's own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def send(self, rows: np.ndarray, slots: np.ndarray) -> LoraRows:
        return LoraRows(torch.from_numpy(rows).to(self._device), torch.from_numpy(slots).to(self._device))

    def clear(self) -> None:
        pass


class StepRows:
    """What the products of a step are corrected with; shared by all of a model's products.

    rows: None between steps, and in a step without adapters. place: where a step's groups lie; another one where steps
    are captured.
    """

    def __init__(self, device: torch.device) -> None:
        self.place: RowsPlace = _NewRows(device)
        self.rows: LoraRows | None = None

    def clear(self) -> None:
        """No row is corrected."""
        self.rows = None
        self.place.clear()

    @contextmanager
    def using(self, rows: LoraRows) -> Iterator[None]:
        """Correct ``rows`` meanwhile."""
        before, self.rows = self.rows, rows
        try:
            yield
        finally:
            self.rows = before

    def fill(self, slots: Sequence[int], counts: Sequence[int]) -> None:
        """slots: of each sequence of the step, -1 for none. counts: how many rows each has."""
        of_rows = np.repeat(np.array(slots, np.int32), np.array(counts, np.int64))
        groups: list[np.ndarray] = []
        of_groups: list[int] = []
        for slot in sorted({slot for slot in slots if slot >= 0}):
            numbers = np.flatnonzero(of_rows == slot).astype(np.int32)
            padding = -len(numbers) % ROWS_OF_A_GROUP
            groups.append(np.pad(numbers, (0, padding), constant_values=-1).reshape(-1, ROWS_OF_A_GROUP))
            of_groups += [slot] * len(groups[-1])
        self.rows = self.place.send(np.concatenate(groups), np.array(of_groups, np.int32))
