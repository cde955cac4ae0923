"""A sweep's rows as points: all runs of one setting together, and the lines of points along one axis.

    starts   the engine came up and served (ok, queued, preempted); it may have been short of blocks
    holds    it served every request, and none ever waited for blocks (ok)
    fails    it did not come up, or ran out of memory

A setting that was run several times starts or holds only if it did so every time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from kvplan.runs.answers.outliers import excluded_runs, noise_reason
from kvplan.runs.columns import Row
from kvplan.runs.rows import has_speed, is_measured, settings_of, throughput_of
from kvplan.runs.statuses import MEASURED_STATUSES, OUT_OF_MEMORY_STATUSES
from kvplan.runs.trials import TrialSettings

BoundaryAxis = Literal["max_model_len", "gpu_memory_utilization", "max_num_seqs"]


@dataclass(slots=True)
class Point:
    """All runs of one setting. throughput: median of those that were measured, see ``points_of``.

    is_noisy: other processes used much of the machine in all of them.
    """

    settings: TrialSettings
    statuses: set[str] = field(default_factory=set)
    throughputs: list[float] = field(default_factory=list)
    largest_max_model_len: int | None = None
    context_limited_by: str | None = None
    is_noisy: bool = False

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

    def value(self, axis: BoundaryAxis) -> float:
        """Where the point lies on the axis."""
        value: float = getattr(self.settings, axis)
        return value

    def others(self, axis: BoundaryAxis) -> dict[str, float | str]:
        """All settings but the axis."""
        return {name: value for name, value in self.settings.as_json().items() if name != axis}


def points_of(rows: Iterable[Row]) -> list[Point]:
    """One point per setting, in the order of the rows.

    Outliers that were run again do not count for throughput, nor do runs on a busy machine unless there are no others:
    among quiet runs they would look like a decline.
    """
    points: dict[TrialSettings, Point] = {}
    listed = list(rows)
    excluded = {exclusion.trial_id for exclusion in excluded_runs(listed)}
    noisy = {row["trial_id"] for row in listed if noise_reason(row) is not None}
    if any(is_measured(row) and row["trial_id"] not in noisy for row in listed):
        excluded |= noisy
        noisy = set()
    for row in listed:
        settings = settings_of(row)
        point = points.setdefault(settings, Point(settings))
        point.statuses.add(str(row["status"]))
        if has_speed(row) and row["trial_id"] not in excluded:
            point.throughputs.append(throughput_of(row))
            point.is_noisy = point.is_noisy or row["trial_id"] in noisy
        if row["largest_max_model_len"]:
            point.largest_max_model_len = row["largest_max_model_len"]
            point.context_limited_by = row["context_limited_by"]
    return list(points.values())


def lines_along(points: Sequence[Point], axis: BoundaryAxis, shortest: int = 2) -> list[list[Point]]:
    """Points that differ in ``axis`` alone, ascending; lines of fewer points than ``shortest`` are left out."""
    lines: dict[tuple[float | str, ...], list[Point]] = defaultdict(list)
    for point in points:
        lines[tuple(point.others(axis).values())].append(point)
    ordered = [sorted(line, key=lambda point: point.value(axis)) for line in lines.values()]
    return [line for line in ordered if len(line) >= shortest]
