"""Time to the first token and time per token on the best trial's line, over max_num_seqs or what was varied instead."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pandas as pd

from kvplan.reports.looks import BLUE, VERMILION
from kvplan.reports.plots.canvas import finish, from_zero, panels, setting_axis
from kvplan.reports.selection import curves, spreads
from kvplan.reports.wording import asked_name, curves_phrase, setting, short_number
from kvplan.runs.storage.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS: Final = (("ttft", "Time to first token (TTFT)"), ("tpot", "Time per output token (TPOT)"))
# Statistic over requests -> label, colour, line.
_CURVES: Final = {"median": ("median request", BLUE, "o-"), "p99": ("99th percentile", VERMILION, "^--")}


def draw(run: Run, figure: Figure) -> str | None:
    """Two panels, each with the median and the 99th percentile over requests, in ms. None where nothing was varied."""
    found = curves(run, 1)
    if found is None or spreads(found.lines[0].trials, "median_ttft_ms", found.x).empty:
        return None
    trials = found.lines[0].trials
    drawn, x_name = panels(figure, len(_PANELS)), asked_name(run, found.x)
    for axes, (name, title) in zip(drawn, _PANELS, strict=True):
        _panel(axes, trials, name, found.x, x_name)
        axes.set_title(title, fontsize=9.5)
    drawn[0].legend(loc="best")
    # That there are other lines matters where several are drawn.
    held = curves_phrase(run, replace(found, num_left_out=0))
    return finish(figure, run, _finding(trials, found.x, x_name), held, compares_speeds=True)


def _panel(axes: Axes, trials: pd.DataFrame, name: str, x: str, x_name: str) -> None:
    lines = {statistic: spreads(trials, f"{statistic}_{name}_ms", x) for statistic in _CURVES}
    for statistic, points in lines.items():
        _curve(axes, points, *_CURVES[statistic])
    every = pd.concat(lines.values())
    setting_axis(axes, x_name, [1.0] if every.empty else list(every.index))
    from_zero(axes, 0.0 if every.empty else every["max"].max())
    axes.set_ylabel("ms")


def _curve(axes: Axes, points: pd.DataFrame, label: str, colour: str, line: str) -> None:
    axes.plot(points.index, points["median"], line, color=colour, label=label)
    if (points["count"] > 1).any():
        axes.fill_between(points.index, points["min"], points["max"], color=colour, alpha=0.18, linewidth=0)


def _finding(trials: pd.DataFrame, x: str, x_name: str) -> str:
    first = spreads(trials, "median_ttft_ms", x)["median"]
    each = spreads(trials, "median_tpot_ms", x)["median"]
    low, high = (setting(place) for place in (first.index.min(), first.index.max()))
    tpot = "" if each.empty else f", TPOT {_ends(each)} ms"
    return f"Median TTFT {_ends(first)} ms{tpot} ({x_name} {low if low == high else f'{low} to {high}'})"


def _ends(points: pd.Series) -> str:
    """The first and the last of the points."""
    low, high = short_number(points.iloc[0]), short_number(points.iloc[-1])
    return low if len(points) == 1 else f"{low} → {high}"
