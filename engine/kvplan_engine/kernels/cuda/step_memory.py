"""The bytes of the workspace that some products need: bound anew with every workspace, the same for all layers."""

from __future__ import annotations

import torch

_ROW_MULTIPLE = 64  # of a weight's rows, so that torch's product has whole tiles


class StepMemory:
    """One buffer of bytes, which begins at a multiple of 16."""

    def __init__(self, buffer: torch.Tensor | None = None) -> None:
        self._buffer = buffer

    def bind(self, buffer: torch.Tensor) -> None:
        """Use ``buffer`` from now on."""
        self._buffer = buffer

    def release(self) -> None:
        """Let go of the buffer, which keeps the whole workspace that it is a part of."""
        self._buffer = None

    @property
    def is_bound(self) -> bool:
        """Whether there is a buffer."""
        return self._buffer is not None

    def vector(self, dtype: torch.dtype) -> torch.Tensor:
        """All of it as a vector, but for what is no whole element."""
        return self._bytes[: self._bytes.numel() // dtype.itemsize * dtype.itemsize].view(dtype)

    def matrix(self, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """Its beginning as a matrix [rows, columns]; ValueError where that does not fit."""
        count = rows * columns * dtype.itemsize
        if count > self._bytes.numel():
            raise ValueError(f"{rows} x {columns} elements do not fit {self._bytes.numel():,} bytes")
        return self._bytes[:count].view(dtype).view(rows, columns)

    def most_rows(self, columns: int, dtype: torch.dtype) -> int:
        """How many rows of ``columns`` elements fit, in multiples that suit a product; ValueError where none does."""
        rows = self._bytes.numel() // (columns * dtype.itemsize)
        if rows == 0:
            raise ValueError(f"a row of {columns} elements does not fit {self._bytes.numel():,} bytes")
        return rows // _ROW_MULTIPLE * _ROW_MULTIPLE or rows

    @property
    def _bytes(self) -> torch.Tensor:
        assert self._buffer is not None, "the workspace comes before the first step"
        return self._buffer
