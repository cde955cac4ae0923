"""The part of a grid that CI runs: any two values meet in it, or any three, as they do in the grid."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from covering import in_cover

GRID = [cell for cell in product("abcdef", range(4), (False, True), "xyz") if cell[2] or cell[3] != "z"]


@pytest.mark.parametrize(("strength", "most"), [(2, 24), (3, 80)])
def test_every_meeting_of_the_grid_is_in_the_part(strength: int, most: int) -> None:
    runs = in_cover(GRID, strength)
    part = [cell for cell, is_run in zip(GRID, runs, strict=True) if is_run]
    for axes in combinations(range(4), strength):
        met = {tuple(cell[axis] for axis in axes) for cell in part}
        assert met == {tuple(cell[axis] for axis in axes) for cell in GRID}
    assert len(part) <= most < len(GRID)
