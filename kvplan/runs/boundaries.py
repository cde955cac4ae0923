"""The boundaries in a sweep's rows: where the engine starts, where it holds its load, where more stops helping.

    starts   the engine came up and served (ok, queued, preempted); it may have been short of blocks
    holds    it served every request without one ever waiting for blocks (ok)
    fails    it did not come up or ran out of memory

A setting that was run several times starts or holds only if it did so every time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from kvplan.runs.outliers import excluded_runs
from kvplan.runs.statuses import MEASURED_STATUSES, OUT_OF_MEMORY_STATUSES
from kvplan.runs.trials import SETTING_NAMES

Row = Mapping[str, Any]
Key = tuple[Any, ...]

# Throughput within this share of the best counts as the same: below it lies the noise of a shared machine.
SAME_THROUGHPUT = 0.05


@dataclass(frozen=True, slots=True)
class Boundary:
    """One boundary along ``axis`` with all other settings fixed (``at``).

    starts, holds: the outermost value of the axis that does so, None where none did. fails: the nearest value beyond
    that does not. exact: what the engine itself named as its limit, where it did. sentence: the same for people.
    """

    kind: str
    axis: str
    at: dict[str, Any]
    starts: float | int | None
    holds: float | int | None
    fails: float | int | None
    sentence: str
    exact: int | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class Point:
    """All runs of one setting. throughput: median of those that were measured."""

    settings: dict[str, Any]
    statuses: set[str] = field(default_factory=set)
    throughputs: list[float] = field(default_factory=list)
    largest_max_model_len: int | None = None

    @property
    def starts(self) -> bool:
        return bool(self.statuses) and self.statuses <= MEASURED_STATUSES

    @property
    def holds(self) -> bool:
        return self.statuses == {"ok"}

    @property
    def fails(self) -> bool:
        return bool(self.statuses & (OUT_OF_MEMORY_STATUSES | {"skipped_oom_dominated"}))

    @property
    def throughput(self) -> float | None:
        return median(self.throughputs) if self.throughputs else None


def points_of(rows: Iterable[Row]) -> list[Point]:
    """One point per setting, in the order of the rows. Outliers that were run again count, but not for throughput."""
    points: dict[Key, Point] = {}
    listed = list(rows)
    excluded = {exclusion.trial_id for exclusion in excluded_runs(listed)}
    for row in listed:
        settings = {name: row[name] for name in SETTING_NAMES}
        point = points.setdefault(tuple(settings.values()), Point(settings))
        point.statuses.add(str(row["status"]))
        if row["status"] in MEASURED_STATUSES and row["trial_id"] not in excluded:
            point.throughputs.append(row["output_throughput"])
        point.largest_max_model_len = row["largest_max_model_len"] or point.largest_max_model_len
    return list(points.values())


def lines_along(points: Sequence[Point], axis: str) -> list[list[Point]]:
    """Points that differ in ``axis`` alone, ascending; lines of a single point are left out."""
    lines: dict[Key, list[Point]] = defaultdict(list)
    for point in points:
        lines[tuple(value for name, value in point.settings.items() if name != axis)].append(point)
    ordered = [sorted(line, key=lambda point: point.settings[axis]) for line in lines.values()]
    return [line for line in ordered if len(line) > 1]


def find_boundaries(rows: Iterable[Row], axes: Sequence[str] = ()) -> list[Boundary]:
    """Every boundary that the rows show, along utilization, context and batch size.

    axes: only these, for a search: its points are close together along the axis it searched and nowhere else.
    """
    points = points_of(rows)
    boundaries: list[Boundary | None] = []
    for axis, finders in _FINDERS.items():
        if not axes or axis in axes:
            lines = lines_along(points, axis)
            boundaries += [find(line) for find in finders for line in lines]
    return [boundary for boundary in boundaries if boundary is not None]


def _values(line: Sequence[Point], axis: str, wanted: str) -> list[Any]:
    return [point.settings[axis] for point in line if getattr(point, wanted)]


def _at(line: Sequence[Point], axis: str) -> dict[str, Any]:
    return {name: value for name, value in line[0].settings.items() if name != axis}


def _largest_context(line: Sequence[Point]) -> Boundary | None:
    axis = "max_model_len"
    starts, holds = _values(line, axis, "starts"), _values(line, axis, "holds")
    fails = [value for value in _values(line, axis, "fails") if not starts or value > max(starts)]
    if not fails:
        return None
    exact = next((point.largest_max_model_len for point in line if point.largest_max_model_len), None)
    at = _at(line, axis)
    where = f"utilization {at['gpu_memory_utilization']:g}, block {at['block_size']}"
    largest = f"starts up to {max(starts):,} tokens" if starts else "starts with no context that was tried"
    limit = f", its pool holds {exact:,}" if exact else ""
    return Boundary(
        kind="largest_max_model_len",
        axis=axis,
        at=at,
        starts=max(starts, default=None),
        holds=max(holds, default=None),
        fails=min(fails),
        exact=exact,
        sentence=f"{where}: {largest}, not with {min(fails):,}{limit}",
    )


def _lowest_utilization(line: Sequence[Point]) -> Boundary | None:
    axis = "gpu_memory_utilization"
    starts, holds = _values(line, axis, "starts"), _values(line, axis, "holds")
    fails = [value for value in _values(line, axis, "fails") if not starts or value < min(starts)]
    if not fails:
        return None
    at = _at(line, axis)
    where = f"context {at['max_model_len']:,}, block {at['block_size']}, {at['max_num_seqs']} sequences"
    lowest = f"starts from utilization {min(starts):g}" if starts else "starts at no utilization that was tried"
    holding = f", holds the load without waiting from {min(holds):g}" if holds else ""
    return Boundary(
        kind="lowest_gpu_memory_utilization",
        axis=axis,
        at=at,
        starts=min(starts, default=None),
        holds=min(holds, default=None),
        fails=max(fails),
        sentence=f"{where}: {lowest}, not at {max(fails):g}{holding}",
    )


def _highest_utilization(line: Sequence[Point]) -> Boundary | None:
    """Only where too much fails: memory that the engine was given and that was not there under load."""
    axis = "gpu_memory_utilization"
    starts, holds = _values(line, axis, "starts"), _values(line, axis, "holds")
    fails = [value for value in _values(line, axis, "fails") if starts and value > max(starts)]
    if not fails:
        return None
    at = _at(line, axis)
    return Boundary(
        kind="highest_gpu_memory_utilization",
        axis=axis,
        at=at,
        starts=max(starts, default=None),
        holds=max(holds, default=None),
        fails=min(fails),
        sentence=f"context {at['max_model_len']:,}: survives up to utilization {max(starts):g}, not {min(fails):g}",
    )


def _knee(line: Sequence[Point]) -> Boundary | None:
    """The smallest batch that is as fast as the best one, and the first larger one that is slower again."""
    axis = "max_num_seqs"
    measured = [(point.settings[axis], point.throughput) for point in line if point.throughput is not None]
    if len(measured) < 2:
        return None
    best = max(throughput for _, throughput in measured)
    knee = next(value for value, throughput in measured if throughput >= (1 - SAME_THROUGHPUT) * best)
    hurts = [value for value, throughput in measured if value > knee and throughput < (1 - SAME_THROUGHPUT) * best]
    at = _at(line, axis)
    where = f"block {at['block_size']}, utilization {at['gpu_memory_utilization']:g}, context {at['max_model_len']:,}"
    slower = f"; slower again from {min(hurts)}" if hurts else ""
    if knee == measured[-1][0]:
        reached = f"still rising at {knee} sequences, the most that were tried ({best:,.0f} tokens/s)"
    else:
        reached = f"{knee} sequences reach {best:,.0f} tokens/s within 5 %{slower}"
    return Boundary(
        kind="knee_max_num_seqs",
        axis=axis,
        at=at,
        starts=knee,
        holds=max(_values(line, axis, "holds"), default=None),
        fails=min(hurts, default=None),
        sentence=f"{where}: {reached}",
    )


_FINDERS: Mapping[str, tuple[Callable[[Sequence[Point]], Boundary | None], ...]] = {
    "max_model_len": (_largest_context,),
    "gpu_memory_utilization": (_lowest_utilization, _highest_utilization),
    "max_num_seqs": (_knee,),
}


def find_violations(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Points where less succeeded and more failed: memory is expected to be monotone, and sometimes is not.

    More utilization, and less context, can only help a start; where a point contradicts that, both are named. The
    highest utilization that survives is a boundary of its own: failures beyond it contradict nothing.
    """
    points = points_of(rows)
    violations = []
    for axis, more_helps in (("gpu_memory_utilization", True), ("max_model_len", False)):
        for line in lines_along(points, axis):
            ascending = _up_to_the_last_start(line) if more_helps else line[::-1]
            worked: Point | None = None
            for point in ascending:
                if point.starts:
                    worked = worked or point
                elif point.fails and worked is not None:
                    violations.append(_violation(axis, worked, point))
    return violations


def _up_to_the_last_start(line: list[Point]) -> list[Point]:
    last = max((place for place, point in enumerate(line) if point.starts), default=-1)
    return line[: last + 1]


def _violation(axis: str, worked: Point, failed: Point) -> dict[str, Any]:
    good, bad = worked.settings[axis], failed.settings[axis]
    return {
        "axis": axis,
        "at": {name: value for name, value in failed.settings.items() if name != axis},
        "worked": good,
        "failed": bad,
        "sentence": f"{axis} {bad:,} failed although {good:,} worked with the same other settings",
    }
