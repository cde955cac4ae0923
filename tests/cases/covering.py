"""Grids of which a part runs: every pair of values meets in it (or every three), the rest is `make exhaustive`'s.

A fault of one value shows in any of its cells, and one of two values together where the two meet. Cells that are not in
the part carry the marker ``exhaustive``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations
from typing import Any

import pytest

_Together = tuple[tuple[int, Hashable], ...]
"""Values that meet, each with the place of its axis."""


def covering_part(
    cells: Iterable[tuple[Any, ...]],
    *,
    strength: int = 2,
    values_of: Callable[[tuple[Any, ...]], tuple[Hashable, ...]] = tuple,
) -> list[Any]:
    """The cells as parameters of pytest, of which a part in which any ``strength`` values meet runs in CI.

    values_of: a cell's value on each axis, where its parameters are others.
    """
    grid = list(cells)
    runs = in_cover(list(map(values_of, grid)), strength)
    left = pytest.mark.exhaustive
    return [pytest.param(*cell, marks=() if is_run else left) for cell, is_run in zip(grid, runs, strict=True)]


def in_cover(grid: Sequence[tuple[Hashable, ...]], strength: int = 2) -> list[bool]:
    """By cell, whether it is in a part in which any ``strength`` values meet that meet somewhere in the grid.

    The cell with the most that have not met yet comes next, the first of several.
    """
    meetings = [set(_meetings(cell, strength)) for cell in grid]
    missing: set[_Together] = set().union(*meetings)
    runs = [False] * len(grid)
    while missing:
        best = max(range(len(grid)), key=lambda number: len(meetings[number] & missing))
        runs[best] = True
        missing -= meetings[best]
    return runs


def _meetings(cell: tuple[Hashable, ...], strength: int) -> Iterable[_Together]:
    return combinations(enumerate(cell), strength)
