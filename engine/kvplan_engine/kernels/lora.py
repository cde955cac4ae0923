"""What LoRA adapters add to a product: the operation, and its definition in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LoraWeights:
    """The slots of one stored product, in which ``segments`` are stacked, with so many outputs each.

    down [slots, len(segments) x rank, inputs], up [slots, rank, sum(segments)].
    """

    down: torch.Tensor
    up: torch.Tensor
    segments: tuple[int, ...]

    @property
    def rank(self) -> int:
        return self.up.shape[1]


@dataclass(frozen=True, slots=True)
class LoraRows:
    """Which rows have which slot, in groups of up to eight.

    rows [groups, ROWS_OF_A_GROUP] int32 (``lora_groups``): numbers of rows, -1 behind the last. slots [groups] int32;
    -1: no group, which only CUDA's kernels have to know.
    """

    rows: torch.Tensor
    slots: torch.Tensor


Correct = Callable[[torch.Tensor, torch.Tensor, LoraWeights, LoraRows], None]
"""Add to out [T, outputs] what the adapters make of x [T, inputs]; rows of both may be strided."""


def correct(x: torch.Tensor, out: torch.Tensor, weights: LoraWeights, rows: LoraRows) -> None:
    """See ``Correct``."""
    for slot in rows.slots.unique().tolist():
        numbers = rows.rows[rows.slots == slot].flatten()
        numbers = numbers[numbers >= 0].long()
        inner = x[numbers] @ weights.down[slot].t()
        added = [
            narrow @ wide
            for narrow, wide in zip(
                inner.split(weights.rank, dim=1), weights.up[slot].split(weights.segments, dim=1), strict=True
            )
        ]
        out.index_add_(0, numbers, torch.cat(added, dim=1))
