"""The boundaries in a sweep's rows: where the engine starts, where it holds its load, where more stops helping.

What "starts", "holds" and "fails" mean is defined in kvplan.runs.points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from kvplan.runs.columns import Row
from kvplan.runs.points import BoundaryAxis, Point, lines_along, points_of

# Throughput within this share of the best counts as the same: smaller differences are the noise of a shared machine.
SAME_THROUGHPUT: Final = 0.05


@dataclass(frozen=True, slots=True)
class Boundary:
    """One boundary along ``axis`` with all other settings fixed (``at``).

    starts, holds: the outermost value of the axis that does so, None if none did. fails: the nearest value beyond that
    does not. exact: the limit that the engine itself named, if it did. sentence: the same for people.
    """

    kind: str
    axis: BoundaryAxis
    at: dict[str, float | str]
    starts: float | None
    holds: float | None
    fails: float | None
    sentence: str
    exact: int | None = None

    def as_json(self) -> dict[str, object]:
        return asdict(self)


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


def _largest_context(line: Sequence[Point]) -> Boundary | None:
    axis: BoundaryAxis = "max_model_len"
    starts = [point.value(axis) for point in line if point.starts]
    fails = [point.value(axis) for point in line if point.fails and (not starts or point.value(axis) > max(starts))]
    if not fails:
        return None
    exact = next((point.largest_max_model_len for point in line if point.largest_max_model_len), None)
    settings = line[0].settings
    where = f"utilization {settings.gpu_memory_utilization:g}, block {settings.block_size}"
    limit = f"; the pool holds {exact:,}" if exact else ""
    if starts:
        outcome = f"starts up to {max(starts):,} tokens, fails at {min(fails):,}"
    else:
        outcome = f"fails at every context tried, {min(fails):,} and up"
    return Boundary(
        kind="largest_max_model_len",
        axis=axis,
        at=line[0].others(axis),
        starts=max(starts, default=None),
        holds=max((point.value(axis) for point in line if point.holds), default=None),
        fails=min(fails),
        exact=exact,
        sentence=f"{where}: {outcome}{limit}",
    )


def _lowest_utilization(line: Sequence[Point]) -> Boundary | None:
    axis: BoundaryAxis = "gpu_memory_utilization"
    starts = [point.value(axis) for point in line if point.starts]
    holds = [point.value(axis) for point in line if point.holds]
    fails = [point.value(axis) for point in line if point.fails and (not starts or point.value(axis) < min(starts))]
    if not fails:
        return None
    settings = line[0].settings
    where = f"context {settings.max_model_len:,}, block {settings.block_size}, {settings.max_num_seqs} sequences"
    holding = f"; no request waits for blocks from {min(holds):g}" if holds else ""
    if starts:
        outcome = f"starts from utilization {min(starts):g}, fails at {max(fails):g}"
    else:
        outcome = f"fails at every utilization tried, up to {max(fails):g}"
    return Boundary(
        kind="lowest_gpu_memory_utilization",
        axis=axis,
        at=line[0].others(axis),
        starts=min(starts, default=None),
        holds=min(holds, default=None),
        fails=max(fails),
        sentence=f"{where}: {outcome}{holding}",
    )


def _highest_utilization(line: Sequence[Point]) -> Boundary | None:
    """Only if too much fails: memory that the engine was given and that was not there under load."""
    axis: BoundaryAxis = "gpu_memory_utilization"
    starts = [point.value(axis) for point in line if point.starts]
    fails = [point.value(axis) for point in line if point.fails and starts and point.value(axis) > max(starts)]
    if not fails:
        return None
    context = line[0].settings.max_model_len
    return Boundary(
        kind="highest_gpu_memory_utilization",
        axis=axis,
        at=line[0].others(axis),
        starts=max(starts, default=None),
        holds=max((point.value(axis) for point in line if point.holds), default=None),
        fails=min(fails),
        sentence=f"context {context:,}: survives up to utilization {max(starts):g}, fails at {min(fails):g}",
    )


def _knee(line: Sequence[Point]) -> Boundary | None:
    """The smallest batch that is as fast as the best one, and the first larger one that is slower again."""
    axis: BoundaryAxis = "max_num_seqs"
    measured = [(point.value(axis), point.throughput) for point in line if point.throughput is not None]
    if len(measured) < 2:
        return None
    best = max(throughput for _, throughput in measured)
    knee = next(value for value, throughput in measured if throughput >= (1 - SAME_THROUGHPUT) * best)
    slower = [value for value, throughput in measured if value > knee and throughput < (1 - SAME_THROUGHPUT) * best]
    settings = line[0].settings
    where = (
        f"block {settings.block_size}, utilization {settings.gpu_memory_utilization:g}, "
        f"context {settings.max_model_len:,}"
    )
    if knee == measured[-1][0]:
        outcome = f"still rising at {knee} sequences, the most that were tried ({best:,.0f} tokens/s)"
    else:
        decline = f"; slower again from {min(slower)}" if slower else ""
        outcome = f"{knee} sequences reach {best:,.0f} tokens/s within 5 %{decline}"
    return Boundary(
        kind="knee_max_num_seqs",
        axis=axis,
        at=line[0].others(axis),
        starts=knee,
        holds=max((point.value(axis) for point in line if point.holds), default=None),
        fails=min(slower, default=None),
        sentence=f"{where}: {outcome}",
    )


_FINDERS: Final[Mapping[BoundaryAxis, tuple[Callable[[Sequence[Point]], Boundary | None], ...]]] = {
    "max_model_len": (_largest_context,),
    "gpu_memory_utilization": (_lowest_utilization, _highest_utilization),
    "max_num_seqs": (_knee,),
}
