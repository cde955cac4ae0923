"""The boundaries in a sweep's rows: where the engine starts, where it holds its load, where more stops helping.

What "starts", "holds" and "fails" mean is defined in kvplan.runs.answers.points. A search over a pair of axes leaves
one boundary for every value of the second: together they are the frontier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Final

from kvplan.runs.answers.points import BoundaryAxis, Point, lines_along, points_of
from kvplan.runs.columns import Row
from kvplan.runs.setting_text import ALWAYS_SHOWN, settings_text, shown_settings, varied_settings
from kvplan.runs.statuses import context_limit_text
from kvplan.units import plural

# Throughput within this share of the best counts as the same: smaller differences are the noise of a shared machine.
SAME_THROUGHPUT: Final = 0.05
# Of single runs while other processes used much of the CPU.
NOISY_THROUGHPUT: Final = 0.5


@dataclass(frozen=True, slots=True)
class Boundary:
    """One boundary along ``axis`` with all other settings fixed (``at``).

    starts, holds: the outermost value of the axis that does so, None if none did. fails: the nearest value beyond that
    does not, None if every value tried starts. exact: the limit of the KV pool that the engine itself named, if it did.
    sentence: the same for people.
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


@dataclass(frozen=True, slots=True)
class _Line:
    """Points that differ in ``axis`` alone, ascending; ``where`` names the other settings. is_searched: the sweep
    looked for a boundary here, so that none is an answer too."""

    axis: BoundaryAxis
    points: Sequence[Point]
    where: str
    is_searched: bool

    @property
    def at(self) -> dict[str, float | str]:
        return self.points[0].others(self.axis)

    @property
    def starts(self) -> list[float]:
        return [point.value(self.axis) for point in self.points if point.starts]

    @property
    def holds(self) -> list[float]:
        return [point.value(self.axis) for point in self.points if point.holds]

    @property
    def fails(self) -> list[float]:
        return [point.value(self.axis) for point in self.points if point.fails]


def find_boundaries(rows: Iterable[Row], searched: Sequence[str] = ()) -> list[Boundary]:
    """Every boundary that the rows show, along utilization, context and batch size.

    searched: only along these axes, for a search: its points are close together there and nowhere else. Of a pair
    ``first*second`` only the first counts, because the lines run along it.
    """
    points = points_of(rows)
    shown = shown_settings(varied_settings(point.settings for point in points))
    axes = {name.partition("*")[0] for name in searched}
    boundaries: list[Boundary | None] = []
    for axis, finders in _FINDERS.items():
        if not axes or axis in axes:
            # A search may need a single probe to know that everything starts.
            found = _in_order(lines_along(points, axis, shortest=1 if axes else 2), axis)
            named = [name for name in shown if name != axis]
            lines = [_Line(axis, line, settings_text(line[0].settings, named), bool(axes)) for line in found]
            boundaries += [find(line) for find in finders for line in lines]
    return [boundary for boundary in boundaries if boundary is not None]


def _in_order(lines: Sequence[Sequence[Point]], axis: BoundaryAxis) -> list[Sequence[Point]]:
    """Ascending by the settings that the lines hold fixed: a frontier is read from one end to the other."""
    fixed = [name for name in ALWAYS_SHOWN if name != axis]
    return sorted(lines, key=lambda line: [getattr(line[0].settings, name) for name in fixed])


def _largest_context(line: _Line) -> Boundary | None:
    starts = line.starts
    fails = [value for value in line.fails if not starts or value > max(starts)]
    if not fails and not (line.is_searched and starts):
        return None
    limits = [(point.largest_max_model_len, point.context_limited_by) for point in line.points]
    exact, limited_by = min(((tokens, by) for tokens, by in limits if tokens), default=(None, None), key=itemgetter(0))
    limit = f"; {context_limit_text(exact, limited_by)}" if exact else ""
    if not fails:
        outcome = f"starts at every context tried, up to {max(starts):,} tokens"
    elif starts:
        outcome = f"starts up to {max(starts):,} tokens, fails at {min(fails):,}"
    else:
        outcome = f"fails at every context tried, {min(fails):,} and up"
    return Boundary(
        kind="largest_max_model_len",
        axis=line.axis,
        at=line.at,
        starts=max(starts, default=None),
        holds=max(line.holds, default=None),
        fails=min(fails, default=None),
        exact=None if limited_by == "model" else exact,
        sentence=f"{line.where}: {outcome}{limit}",
    )


def _lowest_utilization(line: _Line) -> Boundary | None:
    starts, holds = line.starts, line.holds
    fails = [value for value in line.fails if not starts or value < min(starts)]
    if not fails and not (line.is_searched and starts):
        return None
    holding = f"; no request waits for blocks from {min(holds):g}" if holds else ""
    if not fails:
        outcome = f"starts at every utilization tried, from {min(starts):g}"
    elif starts:
        outcome = f"starts from utilization {min(starts):g}, fails at {max(fails):g}"
    else:
        outcome = f"fails at every utilization tried, up to {max(fails):g}"
    return Boundary(
        kind="lowest_gpu_memory_utilization",
        axis=line.axis,
        at=line.at,
        starts=min(starts, default=None),
        holds=min(holds, default=None),
        fails=max(fails, default=None),
        sentence=f"{line.where}: {outcome}{holding}",
    )


def _highest_utilization(line: _Line) -> Boundary | None:
    """Only if too much fails: memory that the engine was given and that was not there under load."""
    starts = line.starts
    fails = [value for value in line.fails if starts and value > max(starts)]
    if not fails:
        return None
    return Boundary(
        kind="highest_gpu_memory_utilization",
        axis=line.axis,
        at=line.at,
        starts=max(starts),
        holds=max(line.holds, default=None),
        fails=min(fails),
        sentence=f"{line.where}: survives up to utilization {max(starts):g}, fails at {min(fails):g}",
    )


def _knee(line: _Line) -> Boundary | None:
    """The smallest batch that is as fast as the best one, and the first larger one that is slower again."""
    measured = [(point.value(line.axis), point.throughput) for point in line.points if point.throughput is not None]
    if len(measured) < 2:
        return None
    best = max(throughput for _, throughput in measured)
    reached = [(value, throughput) for value, throughput in measured if throughput >= (1 - SAME_THROUGHPUT) * best]
    knee, rate = reached[0]
    is_noisy = any(point.is_noisy and len(point.throughputs) < 2 for point in line.points)
    same = NOISY_THROUGHPUT if is_noisy else SAME_THROUGHPUT
    slower = [value for value, throughput in measured if value > knee and throughput < (1 - same) * best]
    if is_noisy and not slower:
        return None  # single runs of a busy machine: where they level off is chance
    if knee == measured[-1][0]:
        outcome = f"still rising at {plural(int(knee), 'sequence')}, the most that were tried ({best:,.0f} tokens/s)"
    else:
        decline = f" and falls from {min(slower)} on" if slower else ""
        peaks = "peaks" if slower else "levels off"
        outcome = f"throughput {peaks} at {plural(int(knee), 'sequence')} ({rate:,.0f} tokens/s){decline}"
    return Boundary(
        kind="knee_max_num_seqs",
        axis=line.axis,
        at=line.at,
        starts=knee,
        holds=max(line.holds, default=None),
        fails=min(slower, default=None),
        sentence=f"{line.where}: {outcome}",
    )


_FINDERS: Final[Mapping[BoundaryAxis, tuple[Callable[[_Line], Boundary | None], ...]]] = {
    "max_model_len": (_largest_context,),
    "gpu_memory_utilization": (_lowest_utilization, _highest_utilization),
    "max_num_seqs": (_knee,),
}
