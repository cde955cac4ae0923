"""The map of outcomes to scale: a mark per setting that ran, and the measured and the predicted boundary.

For searches, which try many values close together: cells of a grid would be a page high and mostly empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from kvplan.reports.looks import BLACK, GREEN, look_of
from kvplan.reports.outcome_map import OutcomeMap, caption, prediction_verdict
from kvplan.reports.plots.canvas import finish, is_narrow, outer_legend, single_row, thousands
from kvplan.reports.plots.labels import place_labels
from kvplan.reports.wording import axis_title, plural, setting
from kvplan.runs.statuses import MEASURED_STATUSES, best_to_worst
from kvplan.runs.storage.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_MOST_TICKS: Final = 10


def draw(run: Run, plane: OutcomeMap, figure: Figure) -> str:
    """Marks, both boundaries and their values; the finding says where the boundary runs and how many ran."""
    is_strip = len(plane.values(plane.y_column)) == 1
    figure.set_figheight((3.4 if is_narrow(figure) else 2.8) if is_strip else 4.8)
    axes = figure.subplots()
    measured = boundary(plane, plane.served) if plane.along else pd.DataFrame()
    predicted = boundary(plane, plane.cells["serves"].eq(True)) if plane.along else pd.DataFrame()
    _marks(axes, plane)
    _lines(axes, plane, measured, predicted)
    _scale(axes.xaxis, plane, plane.x_column, 5 if is_narrow(figure) else _MOST_TICKS)
    _scale(axes.yaxis, plane, plane.y_column, _MOST_TICKS)
    if is_strip:
        value = float(plane.values(plane.y_column)[0])
        axes.set_ylim(0.5 * value, 1.5 * value)
        single_row(axes, plane.y_column, value)
    handles, labels = axes.get_legend_handles_labels()
    outer_legend(axes, handles, labels)
    finding = finish(figure, run, _finding(plane, measured), caption(run, plane))
    _values(axes, plane, measured)
    return finding


def boundary(plane: OutcomeMap, works: pd.Series) -> pd.DataFrame:
    """The outermost value of ``plane.along`` that works for every value of the other axis: x_column and y_column, one
    row per line on which any does. More context is harder, more utilization easier."""
    assert plane.along is not None, "a boundary runs along an axis"
    other = plane.x_column if plane.along == plane.y_column else plane.y_column
    outermost = "min" if plane.along == "gpu_memory_utilization" else "max"
    return plane.cells[works].groupby(other, as_index=False)[plane.along].agg(outermost)


def _marks(axes: Axes, plane: OutcomeMap) -> None:
    cells = plane.cells[plane.cells["status"] != "skipped_oom_dominated"]
    for status in best_to_worst(cells["status"]):
        group = cells[cells["status"] == status]
        colour, marker = look_of(status).colour, "o" if status in MEASURED_STATUSES else "X"
        look: dict[str, Any] = {"s": 32, "marker": marker, "edgecolor": "#333333", "linewidth": 0.5, "zorder": 3}
        faces = np.where(group["clipped"], "white", colour).tolist()
        axes.scatter(group[plane.x_column], group[plane.y_column], facecolors=faces, **look)
        axes.scatter([], [], color=colour, label=status, **look)
    if cells["clipped"].any():
        axes.scatter([], [], s=30, facecolors="white", edgecolors="#333333", label="hollow: prompts\nshortened to fit")


def _lines(axes: Axes, plane: OutcomeMap, measured: pd.DataFrame, predicted: pd.DataFrame) -> None:
    """The measured boundary broad, the predicted one dashed on it, so that both show where they agree."""
    x, y = plane.x_column, plane.y_column
    if not measured.empty:
        axes.plot(measured[x], measured[y], "D-", color=GREEN, linewidth=5, markersize=9, alpha=0.4, zorder=2,
                  label="boundary: last to serve")  # fmt: skip
    if not predicted.empty:
        axes.plot(predicted[x], predicted[y], "--", marker="_" if plane.along == y else "|", color=BLACK,
                  linewidth=1.4, markersize=12, zorder=2.5, label="predicted boundary")  # fmt: skip


def _scale(axis: Axis, plane: OutcomeMap, name: str, most: int) -> None:
    """Ticks at the values themselves where they are few, else round ones."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    values = [float(value) for value in plane.values(name)]
    if len(values) <= most:
        axis.set_ticks(values)
    else:
        axis.set_major_locator(MaxNLocator(min(most, 8), integer=name != "gpu_memory_utilization"))
    by_value = FuncFormatter(lambda value, _: setting(round(value, 10)))
    axis.set_major_formatter(by_value if name == "gpu_memory_utilization" else thousands())
    axis.set_label_text(name if most < _MOST_TICKS else axis_title(name))


def _values(axes: Axes, plane: OutcomeMap, measured: pd.DataFrame) -> None:
    """The boundary's values, each where it begins."""
    if measured.empty or plane.along is None:
        return
    changes = measured[measured[plane.along].diff() != 0]
    labels = [(x, y, setting(value)) for x, y, value in
              zip(changes[plane.x_column], changes[plane.y_column], changes[plane.along], strict=True)]  # fmt: skip
    ran = plane.cells[plane.cells["status"] != "skipped_oom_dominated"]
    # The boundary rises: it leaves the room on its right.
    place_labels(axes, labels, list(zip(ran[plane.x_column], ran[plane.y_column], strict=True)), (0, -45, 180, 135, 90))


def _finding(plane: OutcomeMap, measured: pd.DataFrame) -> str:
    num_served, num_ran = int(plane.served.sum()), len(plane.cells) - plane.num_not_run
    total = f"{plural(num_ran, 'setting')} that ran"
    counted = f"{num_served or 'None'} of {total} could be served" if measured.empty else _extent(plane, measured)
    verdict = prediction_verdict(plane)
    return "; ".join(filter(None, (counted, verdict and f"{verdict} that ran")))


def _extent(plane: OutcomeMap, measured: pd.DataFrame) -> str:
    """``max_model_len up to 48 at gpu_memory_utilization 0.156, 928 at 0.171``: both ends of the boundary."""
    assert plane.along is not None, "a boundary runs along an axis"
    other = plane.x_column if plane.along == plane.y_column else plane.y_column
    first, last = measured.iloc[0], measured.iloc[-1]
    if plane.along == "max_model_len":  # beyond the first utilization that takes them all, nothing changes
        last = measured.loc[measured[plane.along].idxmax()]
    word = "from" if plane.along == "gpu_memory_utilization" else "up to"
    text = f"{plane.along} {word} {setting(first[plane.along])} at {other} {setting(first[other])}"
    if len(measured) == 1:
        return text
    if measured[plane.along].nunique() == 1:
        return f"{text} to {setting(measured[other].iloc[-1])}"
    return f"{text}, {setting(last[plane.along])} at {setting(last[other])}"
