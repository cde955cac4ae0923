"""Points that contradict a boundary: less memory need failed where more had worked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypedDict

from kvplan.runs.answers.points import BoundaryAxis, Point, lines_along, points_of
from kvplan.runs.columns import Row


class Violation(TypedDict):
    """Two points of a line along ``axis``: ``failed`` should have worked, because ``worked`` did."""

    axis: str
    at: dict[str, float | str]
    worked: float
    failed: float
    sentence: str


def find_violations(rows: Iterable[Row]) -> list[Violation]:
    """Memory is expected to be monotone: more utilization and less context can only help a start.

    The highest utilization that survives is a boundary of its own: failures beyond it contradict nothing.
    """
    points = points_of(rows)
    violations = []
    for line in lines_along(points, "gpu_memory_utilization"):
        violations += _violations_along("gpu_memory_utilization", _up_to_the_last_start(line))
    for line in lines_along(points, "max_model_len"):
        violations += _violations_along("max_model_len", line[::-1])
    return violations


def _violations_along(axis: BoundaryAxis, hardest_first: Sequence[Point]) -> list[Violation]:
    violations: list[Violation] = []
    worked: Point | None = None
    for point in hardest_first:
        if point.starts:
            worked = worked or point
        elif point.fails and worked is not None:
            violations.append(_violation(axis, worked, point))
    return violations


def _up_to_the_last_start(line: list[Point]) -> list[Point]:
    last = max((index for index, point in enumerate(line) if point.starts), default=-1)
    return line[: last + 1]


def _violation(axis: BoundaryAxis, worked: Point, failed: Point) -> Violation:
    good, bad = worked.value(axis), failed.value(axis)
    return {
        "axis": axis,
        "at": failed.others(axis),
        "worked": good,
        "failed": bad,
        "sentence": f"{axis} {bad:,} failed although {good:,} worked with otherwise the same settings",
    }
