"""The map of outcomes over gpu_memory_utilization x max_model_len, with the boundary the planner predicted.

One cell per pair that was tried, evenly spaced whatever the values are: a boundary is where colours change.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from kvplan.reports.looks import StatusLook, look_of
from kvplan.reports.plots.canvas import INK, finish, say
from kvplan.reports.selection import widest_slice
from kvplan.reports.wording import fixed_phrase, plural, setting, short_number
from kvplan.runs.reader import Document, Run
from kvplan.runs.statuses import MEASURED_STATUSES, STATUS_BRIEF, best_to_worst, worst_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

X_COLUMN: Final = "gpu_memory_utilization"
Y_COLUMN: Final = "max_model_len"


@dataclass(frozen=True, slots=True, eq=False)
class OutcomeMap:
    """The widest plane of a run over utilization and context. fixed: all other settings.

    cells: one row per pair tried. x, y: the place of its values (X_COLUMN, Y_COLUMN) among all of them, ascending;
    status: the worst of the repetitions, because a setting that fails now and then is not safe; serves: whether it was
    expected to serve, None without a prediction; throughput: median of the repetitions; fits: the largest
    max_model_len, where the engine named one; num_trials; is_flagged: fails although a harder setting worked.
    """

    cells: pd.DataFrame
    fixed: Document

    @property
    def served(self) -> pd.Series:
        """True for every cell in which all requests were served."""
        return self.cells["status"].isin(MEASURED_STATUSES)

    def values(self, column: str) -> list[float]:
        """The distinct values of an axis, ascending."""
        return sorted(self.cells[column].unique())


def outcome_map(run: Run) -> OutcomeMap:
    """The map of a run; one without cells where no trial names both axes."""
    part = widest_slice(run.frame.dropna(subset=[X_COLUMN, Y_COLUMN]), (X_COLUMN, Y_COLUMN))
    trials = part.trials.assign(is_flagged=_is_flagged(part.trials, violations(run)))
    cells = trials.groupby([X_COLUMN, Y_COLUMN], as_index=False).agg(
        status=("status", worst_of),
        predicted_status=("predicted_status", "first"),
        throughput=("output_throughput", "median"),
        fits=("largest_max_model_len", "first"),
        num_trials=("status", "size"),
        is_flagged=("is_flagged", "any"),
    )
    serves = [status in MEASURED_STATUSES if status else None for status in cells["predicted_status"]]
    places = {axis: cells[column].rank(method="dense") - 1 for axis, column in (("x", X_COLUMN), ("y", Y_COLUMN))}
    return OutcomeMap(cells.assign(serves=pd.Series(serves, dtype=object), **places), part.fixed)


def violations(run: Run) -> list[Document]:
    """The settings of failures that the summary flags because a harder setting worked."""
    found = [(entry.get("at"), str(entry.get("axis")), entry.get("failed")) for entry in run.entries("violations")]
    return [{**at, axis: failed} for at, axis, failed in found if isinstance(at, dict)]


def _is_flagged(trials: pd.DataFrame, flagged: Sequence[Document]) -> pd.Series:
    agrees = pd.Series(False, index=trials.index)
    for settings in flagged:
        if settings.keys() <= set(trials.columns):
            agrees |= (trials[list(settings)] == pd.Series(settings)).all(axis=1)
    return agrees


def draw(run: Run, figure: Figure) -> str:
    """Coloured, hatched and named cells; the finding counts what served and what the planner expected."""
    plane = outcome_map(run)
    if plane.cells.empty:
        return say(figure, run, "No trial has both a gpu_memory_utilization and a max_model_len, so there is no map.")
    _fit(figure, plane)
    axes = figure.subplots()
    for cell in plane.cells.itertuples():
        _draw_cell(axes, cell)
    has_line = _predicted_boundary(axes, plane)
    _ticks(axes, plane)
    _legend(axes, plane, has_line)
    return finish(figure, run, _finding(plane), fixed_phrase(plane.fixed))


def _fit(figure: Figure, plane: OutcomeMap) -> None:
    """Cells keep a readable size: the picture grows with the map."""
    width = min(20.0, max(8.0, 1.6 + 0.82 * len(plane.values(X_COLUMN))))
    height = min(16.0, max(4.2, 3.0 + 0.55 * len(plane.values(Y_COLUMN))))
    figure.set_size_inches(width, height)


def _draw_cell(axes: Axes, cell: Any) -> None:
    """``cell``: a row of OutcomeMap.cells, as a named tuple."""
    look = look_of(cell.status)
    axes.add_patch(_patch(look, (cell.x - 0.5, cell.y - 0.5)))
    backing = {"facecolor": "white", "alpha": 0.82, "edgecolor": "none", "pad": 1.2}
    axes.text(cell.x, cell.y, ("! " if cell.is_flagged else "") + _cell_text(cell, look), ha="center", va="center",
              fontsize=7.5, linespacing=1.05, bbox=backing)  # fmt: skip


def _patch(look: StatusLook, corner: tuple[float, float]) -> Rectangle:
    from matplotlib.patches import Rectangle

    return Rectangle(corner, 1, 1, facecolor=look.colour, hatch=look.hatch, edgecolor="white", linewidth=1.2)


def _cell_text(cell: Any, look: StatusLook) -> str:
    if cell.status in MEASURED_STATUSES:
        return f"{look.label}\n{short_number(cell.throughput)} tok/s"
    if cell.status == "rejected_ctx" and cell.fits > 0:
        return f"rejected\nfits {short_number(cell.fits)}"
    return look.label


def _predicted_boundary(axes: Axes, plane: OutcomeMap) -> bool:
    """A line between every two cells next to each other, or with nothing tried between them, of which one was expected
    to serve and the other to fail. True when there is any."""
    segments = [
        *(((edge, edge), (row - 0.5, row + 0.5)) for row, edge in _edges(plane.cells, line="y", along="x")),
        *(((column - 0.5, column + 0.5), (edge, edge)) for column, edge in _edges(plane.cells, line="x", along="y")),
    ]
    for colour, width in (("white", 5.5), ("black", 2.6)):
        for xs, ys in segments:
            axes.plot(xs, ys, color=colour, linewidth=width, solid_capstyle="round", zorder=4)
    return bool(segments)


def _edges(cells: pd.DataFrame, line: str, along: str) -> Iterator[tuple[float, float]]:
    """(line, place of the edge on it) for every change of the prediction along the lines."""
    predicted = cells.dropna(subset=["serves"]).sort_values(along)
    for place, found in predicted.groupby(line):
        cells_on_line = zip(found[along], found["serves"], strict=True)
        for (here, serves), (there, serves_there) in itertools.pairwise(cells_on_line):
            if serves != serves_there:
                yield place, (here + there) / 2


def _ticks(axes: Axes, plane: OutcomeMap) -> None:
    x_values, y_values = plane.values(X_COLUMN), plane.values(Y_COLUMN)
    axes.set_xlim(-0.5, len(x_values) - 0.5)
    axes.set_ylim(-0.5, len(y_values) - 0.5)
    axes.set_xticks(range(len(x_values)), [setting(x) for x in x_values], rotation=90 * (len(x_values) > 24))
    axes.set_yticks(range(len(y_values)), [setting(y) for y in y_values])
    axes.tick_params(length=0)
    axes.set_facecolor("#F3F3F3")  # pairs that were not tried
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("gpu_memory_utilization (share of device memory)")
    axes.set_ylabel("max_model_len (tokens)")


def _legend(axes: Axes, plane: OutcomeMap, has_line: bool) -> None:
    from matplotlib.lines import Line2D

    statuses = best_to_worst(plane.cells["status"])
    handles: list[Rectangle | Line2D] = [_patch(look_of(name), (0, 0)) for name in statuses]
    labels = [f"{name}: {STATUS_BRIEF[name]}" if name in STATUS_BRIEF else name for name in statuses]
    if has_line:
        handles.append(Line2D([], [], color="black", linewidth=2.6))
        labels.append("predicted boundary: serves | fails")
    axes.legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, fontsize=8, handlelength=1.6,
                handleheight=1.2, borderaxespad=0.2, borderpad=0, labelcolor=INK)  # fmt: skip


def _finding(plane: OutcomeMap) -> str:
    total, num_served = plural(len(plane.cells), "setting"), int(plane.served.sum())
    if not num_served:
        return f"None of {total} could be served"
    known = plane.cells["serves"].notna()
    wrong = int((plane.cells["serves"][known] != plane.served[known]).sum())
    verdict = f"wrong for {wrong} of {known.sum()}" if wrong else f"right for all {known.sum()}"
    return f"{num_served} of {total} could be served" + (f"; the prediction was {verdict}" if known.any() else "")
