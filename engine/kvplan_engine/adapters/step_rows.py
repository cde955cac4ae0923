"""Which rows of a step are corrected by which slot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch

from kvplan_engine.kernels.lora import LoraRows
from kvplan_engine.kernels.workspace_sizes import ROWS_OF_A_GROUP


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
    are captured. The products of a last layer that computes the sampled rows alone are corrected for these: only where
    steps wait for their inputs, elsewhere steps with adapters compute all rows.
    """

    def __init__(self, device: torch.device) -> None:
        self._own = _NewRows(device)
        self.place: RowsPlace = self._own

    def release_place(self) -> None:
        """Let go of a place in a workspace."""
        self.place = self._own
        self.rows: LoraRows | None = None
        self.sampled: LoraRows | None = None
        self._num_sampled = -1

    def clear(self) -> None:
        """No row is corrected."""
        self.rows = self.sampled = None
        self.place.clear()

    @contextmanager
    def using(self, rows: LoraRows) -> Iterator[None]:
        """Correct ``rows`` meanwhile."""
        before, self.rows = self.rows, rows
        try:
            yield
        finally:
            self.rows = before

    def among(self, number: int) -> LoraRows | None:
        """The corrected rows of a product of ``number`` rows: all of the step's, or those that are sampled."""
        return self.sampled if number == self._num_sampled else self.rows

    def fill(self, slots: Sequence[int], counts: Sequence[int], is_sampled: Sequence[bool]) -> None:
        """slots: of each sequence of the step, -1 for none. counts: how many rows each has, the last may be sampled."""
        of_sequences = np.array(slots, np.int32)
        of_rows = np.repeat(of_sequences, np.array(counts, np.int64))
        self.rows = _grouped(of_rows, self.place)
        of_sampled = of_sequences[np.array(is_sampled, np.bool_)]
        self._num_sampled, self.sampled = -1, None
        if self.place is self._own and len(of_sampled) < len(of_rows):
            self._num_sampled, self.sampled = len(of_sampled), _grouped(of_sampled, self._own)


def _grouped(of_rows: np.ndarray, place: RowsPlace) -> LoraRows | None:
    """of_rows: the slot of each row, -1 for none; None where none has one."""
    groups: list[np.ndarray] = []
    of_groups: list[int] = []
    for slot in sorted(set(of_rows.tolist()) - {-1}):
        numbers = np.flatnonzero(of_rows == slot).astype(np.int32)
        padding = -len(numbers) % ROWS_OF_A_GROUP
        groups.append(np.pad(numbers, (0, padding), constant_values=-1).reshape(-1, ROWS_OF_A_GROUP))
        of_groups += [slot] * len(groups[-1])
    return place.send(np.concatenate(groups), np.array(of_groups, np.int32)) if groups else None
