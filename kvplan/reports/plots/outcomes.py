"""The map of outcomes over gpu_memory_utilization x max_model_len, with the boundary the planner predicted.

One cell per pair that was tried, evenly spaced whatever the values are: a boundary is where colours change.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvplan.reports.plots.canvas import INK, finish, say
from kvplan.reports.selection import Spread, widest_slice
from kvplan.reports.statuses import STATUS_ORDER, StatusLook, in_order, is_measured, look_of
from kvplan.reports.wording import fixed_phrase, plural, setting, short_number
from kvplan.runs.reader import Run, Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

X_COLUMN = "gpu_memory_utilization"
Y_COLUMN = "max_model_len"


@dataclass(frozen=True, slots=True)
class OutcomeMap:
    """Distinct values of both axes, ascending, and the trials (repetitions) of each pair of places."""

    x_values: tuple[float, ...]
    y_values: tuple[float, ...]
    cells: Mapping[tuple[int, int], Sequence[Trial]]
    fixed: Mapping[str, Any]

    def status(self, place: tuple[int, int]) -> str:
        """The worst outcome of the repetitions: a setting that fails now and then is no safe setting."""
        rank = {name: number for number, name in enumerate(STATUS_ORDER)}
        return max((trial.status for trial in self.cells[place]), key=lambda name: rank.get(name, len(rank)))

    def predicted(self, place: tuple[int, int]) -> bool | None:
        """Whether the cell was expected to serve; None where no prediction stands in the row."""
        status = self.cells[place][0].text("predicted_status") if place in self.cells else ""
        return is_measured(status) if status else None


def outcome_map(run: Run) -> OutcomeMap:
    """The widest plane of the run over utilization and context."""
    placed = [t for t in run.trials if t.number(X_COLUMN) is not None and t.number(Y_COLUMN) is not None]
    part = widest_slice(placed, (X_COLUMN, Y_COLUMN))
    x_values = sorted({x for trial in part.trials if (x := trial.number(X_COLUMN)) is not None})
    y_values = sorted({y for trial in part.trials if (y := trial.number(Y_COLUMN)) is not None})
    cells: dict[tuple[int, int], list[Trial]] = defaultdict(list)
    for trial in part.trials:
        x, y = trial.number(X_COLUMN), trial.number(Y_COLUMN)
        if x is not None and y is not None:
            cells[x_values.index(x), y_values.index(y)].append(trial)
    return OutcomeMap(tuple(x_values), tuple(y_values), dict(cells), part.fixed)


def draw(run: Run, figure: Figure) -> str:
    """Coloured, hatched and named cells; the finding counts what held and what did not."""
    plane = outcome_map(run)
    if not plane.cells:
        return say(figure, run, "No trial names a gpu_memory_utilization and a max_model_len: there is no map.")
    _fit(figure, plane)
    axes = figure.subplots()
    flagged = violations(run)
    for place in plane.cells:
        _cell(axes, plane, place, flagged)
    has_line = _predicted_boundary(axes, plane)
    _ticks(axes, plane)
    _legend(axes, plane, has_line)
    return finish(figure, run, _finding(plane), fixed_phrase(plane.fixed))


def _fit(figure: Figure, plane: OutcomeMap) -> None:
    """Cells keep a readable size: the paper grows with the map."""
    width = min(20.0, max(8.0, 1.6 + 0.82 * len(plane.x_values)))
    height = min(16.0, max(4.2, 3.0 + 0.55 * len(plane.y_values)))
    figure.set_size_inches(width, height)


def _cell(axes: Axes, plane: OutcomeMap, place: tuple[int, int], flagged: list[dict[str, Any]]) -> None:
    from matplotlib.patches import Rectangle

    look = look_of(plane.status(place))
    x, y = place
    axes.add_patch(_patch(Rectangle, look, (x - 0.5, y - 0.5)))
    marks = any(_agrees(trial, settings) for trial in plane.cells[place] for settings in flagged)
    backing = {"facecolor": "white", "alpha": 0.82, "edgecolor": "none", "pad": 1.2}
    axes.text(x, y, ("! " if marks else "") + _cell_text(plane, place, look), ha="center", va="center", fontsize=7.5,
              linespacing=1.05, bbox=backing)  # fmt: skip


def _patch(rectangle: Any, look: StatusLook, corner: tuple[float, float]) -> Any:
    edge = "white" if look.measured else "#FFFFFF"
    return rectangle(corner, 1, 1, facecolor=look.colour, hatch=look.hatch, edgecolor=edge, linewidth=1.2)


def _cell_text(plane: OutcomeMap, place: tuple[int, int], look: StatusLook) -> str:
    trials = plane.cells[place]
    if look.measured:
        rate = Spread.of([trial.number("output_throughput") or 0.0 for trial in trials]).median
        return f"{look.short}\n{short_number(rate)} tok/s"
    fitting = trials[0].number("largest_max_model_len")
    return f"refused\nfits {short_number(fitting)}" if look.name == "rejected_ctx" and fitting else look.short


def _predicted_boundary(axes: Axes, plane: OutcomeMap) -> bool:
    """A line between every two cells next to each other, or with nothing tried between them, of which one was expected
    to serve and the other to fail. True when there is any."""
    segments = [
        *(((edge, edge), (row - 0.5, row + 0.5)) for row, edge in _edges(plane, along=0)),
        *(((column - 0.5, column + 0.5), (edge, edge)) for column, edge in _edges(plane, along=1)),
    ]
    for colour, width in (("white", 5.5), ("black", 2.6)):
        for xs, ys in segments:
            axes.plot(xs, ys, color=colour, linewidth=width, solid_capstyle="round", zorder=4)
    return bool(segments)


def _edges(plane: OutcomeMap, along: int) -> Iterator[tuple[int, float]]:
    """(line, place of the edge on it) for every change of the prediction along the rows (0) or the columns (1)."""
    lines: dict[int, list[tuple[int, bool]]] = defaultdict(list)
    for place in sorted(plane.cells):
        serves = plane.predicted(place)
        if serves is not None:
            lines[place[1 - along]].append((place[along], serves))
    for line, found in lines.items():
        for (here, serves), (there, serves_there) in itertools.pairwise(found):
            if serves != serves_there:
                yield line, (here + there) / 2


def _ticks(axes: Axes, plane: OutcomeMap) -> None:
    axes.set_xlim(-0.5, len(plane.x_values) - 0.5)
    axes.set_ylim(-0.5, len(plane.y_values) - 0.5)
    crowded = len(plane.x_values) > 24
    axes.set_xticks(range(len(plane.x_values)), [setting(x) for x in plane.x_values], rotation=90 * crowded)
    axes.set_yticks(range(len(plane.y_values)), [setting(y) for y in plane.y_values])
    axes.tick_params(length=0)
    axes.set_facecolor("#F3F3F3")  # pairs that were not tried
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("gpu_memory_utilization (share of device memory)")
    axes.set_ylabel("max_model_len (tokens)")


def _legend(axes: Axes, plane: OutcomeMap, has_line: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    looks = [look_of(name) for name in in_order({plane.status(place) for place in plane.cells})]
    handles: list[Any] = [_patch(Rectangle, look, (0, 0)) for look in looks]
    labels = [f"{look.name}: {look.meaning}" if look.meaning else look.name for look in looks]
    if has_line:
        handles.append(Line2D([], [], color="black", linewidth=2.6))
        labels.append("predicted boundary: serves | fails")
    axes.legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, fontsize=8, handlelength=1.6,
                handleheight=1.2, borderaxespad=0.2, borderpad=0, labelcolor=INK)  # fmt: skip


def violations(run: Run) -> list[dict[str, Any]]:
    """The settings of failures that the summary flags because a harder setting worked."""
    listed = run.summary.get("violations")
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    return [
        {**entry["at"], str(entry.get("axis")): entry.get("failed")}
        for entry in entries
        if isinstance(entry.get("at"), dict)
    ]


def _agrees(trial: Trial, settings: Mapping[str, Any]) -> bool:
    return all(trial.row.get(name) == value for name, value in settings.items())


def _finding(plane: OutcomeMap) -> str:
    statuses = {place: plane.status(place) for place in plane.cells}
    served = [place for place, status in statuses.items() if is_measured(status)]
    total = len(statuses)
    if not served:
        return f"None of {plural(total, 'setting')} could be served"
    known = [place for place in statuses if plane.predicted(place) is not None]
    wrong = sum(plane.predicted(place) != is_measured(statuses[place]) for place in known)
    right = f"wrong for {wrong} of {len(known)}" if wrong else f"right for all {len(known)}"
    verdict = f"; the prediction was {right}" if known else ""
    return f"{len(served)} of {plural(total, 'setting')} could be served{verdict}"
