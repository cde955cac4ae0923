"""Which rows of a step are corrected by which slot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kvplan_engine.kernels.lora import ROWS_OF_A_GROUP, LoraRows


class StepRows:
    """What the products of a step are corrected with; shared by all of a model's products.

    rows: None between steps, and in a step without adapters.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.rows: LoraRows | None = None

    def clear(self) -> None:
        """No row is corrected."""
        self.rows = None

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
        self.rows = LoraRows(self._sent(np.concatenate(groups)), self._sent(np.array(of_groups, np.int32)))

    def _sent(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device, non_blocking=True)
