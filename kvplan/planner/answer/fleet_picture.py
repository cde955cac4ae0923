"""``--plot`` of a fleet for a trace: the charts of its page as one PNG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvplan.estimate.speed.step_picture import save_picture
from kvplan.planner.answer.charts import Chart
from kvplan.planner.answer.fleet_page import fleet_charts
from kvplan.planner.fleets.answering import FleetAnswer

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS: Final = {"a": "#1f5f99", "b": "#b3541e", "c": "#2d7a46", "d": "#7a4fa3"}
_COLUMNS: Final = 2


def draw_fleet(answer: FleetAnswer, path: Path) -> None:
    """Write the picture to ``path``. KvplanError where that cannot be written."""
    from matplotlib.figure import Figure

    charts = fleet_charts(answer)
    rows = -(-len(charts) // _COLUMNS)
    figure = Figure(figsize=(12, 2.9 * rows), layout="constrained")
    axes = figure.subplots(rows, _COLUMNS, squeeze=False).flatten()
    for each, place in zip(charts, axes, strict=False):
        _draw(each, place)
    for place in axes[len(charts) :]:
        place.set_axis_off()
    save_picture(figure, path)


def _draw(chart: Chart, axes: Axes) -> None:
    for line in chart.lines:
        xs, ys = zip(*line.points, strict=True) if line.points else ((), ())
        marker = "o" if line.has_dots else ""
        if line.band:
            places, low, high = zip(*line.band, strict=True)
            axes.fill_between(places, low, high, color=_COLOURS[line.colour], alpha=0.15, linewidth=0)
        axes.plot(xs, ys, label=line.label, color=_COLOURS[line.colour], marker=marker, linewidth=1.3)
    if chart.bound is not None:
        axes.axhline(chart.bound, color="#b00020", linestyle="--", linewidth=1.0)
    axes.set_ylim(0, chart.top)
    axes.set_title(chart.title, loc="left", fontsize=10)
    axes.set_xlabel(chart.x_label, fontsize=8)
    axes.set_ylabel(chart.y_label, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(visible=True, color="#e8ebee")
    axes.legend(fontsize=8, frameon=False, ncols=len(chart.lines))
