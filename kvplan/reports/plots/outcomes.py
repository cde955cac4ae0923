"""The map of outcomes over two settings, usually gpu_memory_utilization x max_model_len, with the predicted boundary.

One cell per pair that was tried, evenly spaced whatever the values are: a boundary is where colours change. A map with
more values than cells can be read is drawn to scale instead (frontier.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from kvplan.reports.looks import StatusLook, look_of
from kvplan.reports.outcome_map import OutcomeMap, caption, outcome_map, prediction_verdict
from kvplan.reports.plots import frontier
from kvplan.reports.plots.canvas import INK, axis_text, finish, is_narrow, single_row
from kvplan.reports.wording import plural, setting, short_number
from kvplan.runs.statuses import MEASURED_STATUSES, STATUS_BRIEF, best_to_worst
from kvplan.runs.storage.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

# More rows or columns are drawn to scale.
_MOST_COLUMNS: Final = 20
_PHONE_COLUMNS: Final = 9
_MOST_ROWS: Final = 12
_CLIPPED_NOTE: Final = "* prompts shortened to fit the context: other work than where there is no mark"
# What stands for a status in a phone's cell, and in its legend.
_LETTERS: Final = {"queued": "Q", "preempted": "P"}


def draw(run: Run, figure: Figure) -> str | None:
    """Coloured, hatched and named cells; the finding counts what served and what the planner expected.

    None where fewer than two pairs were tried.
    """
    plane = outcome_map(run)
    if plane is None:
        return None
    if _is_too_large(plane, _PHONE_COLUMNS if is_narrow(figure) else _MOST_COLUMNS):
        return frontier.draw(run, plane, figure)
    _fit(figure, plane)
    axes = figure.subplots()
    for cell in plane.cells.itertuples():
        _draw_cell(axes, cell, is_narrow(figure))
    has_line = _predicted_boundary(axes, plane)
    _ticks(axes, plane)
    _legend(axes, plane, has_line)
    footnote = f"\n{_CLIPPED_NOTE}" if plane.cells["clipped"].any() else ""
    return finish(figure, run, _finding(plane), caption(run, plane) + footnote)


def _is_too_large(plane: OutcomeMap, most_columns: int) -> bool:
    are_numbers = all(pd.api.types.is_numeric_dtype(plane.cells[name]) for name in (plane.x_column, plane.y_column))
    num_columns, num_rows = len(plane.values(plane.x_column)), len(plane.values(plane.y_column))
    return are_numbers and (num_columns > most_columns or num_rows > _MOST_ROWS)


def _fit(figure: Figure, plane: OutcomeMap) -> None:
    """Cells keep a readable size: the picture grows with the map, but not for a phone."""
    num_columns, num_rows = len(plane.values(plane.x_column)), len(plane.values(plane.y_column))
    if is_narrow(figure):
        figure.set_figheight(2.6 + 0.17 * plane.cells["status"].nunique() + 0.55 * num_rows)
        return
    width = min(20.0, max(8.0, 1.6 + 0.82 * num_columns))
    figure.set_size_inches(width, 2.4 + 0.7 * min(num_rows, 3) + 0.55 * max(0, num_rows - 3))


def _draw_cell(axes: Axes, cell: Any, is_small: bool) -> None:
    """``cell``: a row of OutcomeMap.cells, as a named tuple."""
    look = look_of(cell.status)
    axes.add_patch(_patch(look, (cell.x - 0.5, cell.y - 0.5)))
    backing = {"facecolor": "white", "alpha": 0.82, "edgecolor": "none", "pad": 1.2}
    text = _small_cell_text(cell, look) if is_small else _cell_text(cell, look)
    text = ("! " if cell.is_flagged else "") + text + ("*" if cell.clipped else "")
    axes.text(cell.x, cell.y, text, ha="center", va="center", fontsize=6 if is_small else 7.5, linespacing=1.05,
              bbox=backing)  # fmt: skip


def _patch(look: StatusLook, corner: tuple[float, float]) -> Rectangle:
    from matplotlib.patches import Rectangle

    return Rectangle(corner, 1, 1, facecolor=look.colour, hatch=look.hatch, edgecolor="white", linewidth=1.2)


def _cell_text(cell: Any, look: StatusLook) -> str:
    if cell.status in MEASURED_STATUSES:
        return f"{look.label}\n{_figure(cell)}"
    if cell.status == "rejected_ctx" and cell.largest_context > 0:
        return f"rejected\nat most {short_number(cell.largest_context)}"
    return look.label


def _figure(cell: Any) -> str:
    """The throughput; the KV pool's peak where nothing was computed."""
    if pd.isna(cell.throughput):
        return f"KV {100 * cell.usage:.0f} %"
    return f"{short_number(cell.throughput)} tok/s"


def _small_cell_text(cell: Any, look: StatusLook) -> str:
    """What fits into a phone's cell; the legend says what it is."""
    if cell.status in MEASURED_STATUSES:
        return f"{_LETTERS.get(cell.status, look.label)}\n{_figure(cell).removesuffix(' tok/s')}"
    if cell.status == "rejected_ctx" and cell.largest_context > 0:
        return f"at most\n{short_number(cell.largest_context)}"
    return look.label.replace(" ", "\n")


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
    """(line, place of the edge on it) for every change of the prediction along the lines: the edge of the cell that was
    expected to fail, because what was not tried between the two may fail as well."""
    predicted = cells.dropna(subset=["serves"]).sort_values(along)
    for place, found in predicted.groupby(line):
        cells_on_line = zip(found[along], found["serves"], strict=True)
        for (here, serves), (there, serves_there) in itertools.pairwise(cells_on_line):
            if serves != serves_there:
                yield place, there - 0.5 if serves else here + 0.5


def _ticks(axes: Axes, plane: OutcomeMap) -> None:
    x_values, y_values = plane.values(plane.x_column), plane.values(plane.y_column)
    is_small = is_narrow(axes)
    axes.set_xlim(-0.5, len(x_values) - 0.5)
    axes.set_ylim(-0.5, len(y_values) - 0.5)
    axes.set_xticks(range(len(x_values)), [setting(x) for x in x_values],
                    rotation=90 * (len(x_values) > (4 if is_small else 14)))  # fmt: skip
    axes.set_yticks(range(len(y_values)), [setting(y) for y in y_values])
    axes.tick_params(length=0)
    axes.set_facecolor("#F3F3F3")  # pairs that were not tried
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(axis_text(axes, plane.x_column))
    axes.set_ylabel(axis_text(axes, plane.y_column))
    if len(y_values) == 1:
        single_row(axes, plane.y_column, y_values[0])


def _legend(axes: Axes, plane: OutcomeMap, has_line: bool) -> None:
    from matplotlib.lines import Line2D

    statuses = best_to_worst(plane.cells["status"])
    handles: list[Rectangle | Line2D] = [_patch(look_of(name), (0, 0)) for name in statuses]
    is_small = is_narrow(axes)
    letters = {name: f" ({letter})" for name, letter in _LETTERS.items() if is_small}
    labels = [f"{name}{letters.get(name, '')}: {STATUS_BRIEF[name]}" if name in STATUS_BRIEF else name
              for name in statuses]  # fmt: skip
    if has_line:
        handles.append(Line2D([], [], color="black", linewidth=2.6))
        labels.append("predicted boundary: serves | fails")
    axes.legend(handles, labels, loc="lower right" if is_small else "lower left",
                bbox_to_anchor=(1 if is_small else 0, 1.0), ncols=1 if is_small else 2, fontsize=8, handlelength=1.6,
                handleheight=1.2, borderaxespad=0.2, borderpad=0, labelcolor=INK)  # fmt: skip


def _finding(plane: OutcomeMap) -> str:
    num_served, num_ran = int(plane.served.sum()), len(plane.cells) - plane.num_not_run
    total = plural(num_ran, "setting") + (" that ran" if plane.num_not_run else "")
    if not num_served:
        return f"None of {total} could be served"
    return "; ".join(filter(None, (f"{num_served} of {total} could be served", prediction_verdict(plane))))
