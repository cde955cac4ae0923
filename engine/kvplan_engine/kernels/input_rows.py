"""Rows of a step's inputs on their way from host memory to the device: what ``Ops.copy_inputs`` takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvplan_engine.kernels.arguments import check_vector


@dataclass(frozen=True, slots=True)
class InputRows:
    """Rows that go from ``source`` to the same rows of ``target``: int32 or int64, of one shape and one stride.

    Of tensors [N] the first ``rows`` elements; of [N, C] the first ``columns`` of each of the first ``rows`` rows.
    """

    source: torch.Tensor
    target: torch.Tensor
    rows: int
    columns: int | None = None

    def cut(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return those elements of both."""
        source, target = self.source[: self.rows], self.target[: self.rows]
        return (source, target) if self.columns is None else (source[:, : self.columns], target[:, : self.columns])

    def check(self) -> None:
        """ValueError where the two do not fit each other, or have no such rows."""
        source, target = self.source, self.target
        if source.dtype is not target.dtype or source.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"inputs are int32 or int64 on both sides, got {source.dtype} and {target.dtype}")
        if source.shape != target.shape or source.stride() != target.stride() or source.stride(-1) != 1:
            raise ValueError(
                f"an input of {tuple(source.shape)} with strides {source.stride()} cannot go to {tuple(target.shape)} "
                f"with strides {target.stride()}"
            )
        if (source.dim() == 2) != (self.columns is not None):
            raise ValueError(f"an input of {source.dim()} axes cannot have {self.columns} columns")
        if self.rows > source.shape[0] or (self.columns is not None and self.columns > source.shape[1]):
            raise ValueError(f"an input {tuple(source.shape)} has no {self.rows} rows of {self.columns}")


def check_inputs(inputs: Sequence[InputRows], chosen: torch.Tensor | None) -> None:
    """The arguments of ``Ops.copy_inputs``."""
    for each in inputs:
        each.check()
    if chosen is None:
        return
    check_vector("chosen", chosen, chosen.shape[0], torch.int64)
    if not inputs or inputs[0].target.dtype is not torch.int64 or inputs[0].columns is not None:
        raise ValueError("only an int64 vector can stand for chosen tokens")
