"""How much of the load stays within the SLO: share of requests and goodput, at every load tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from kvplan.reports.looks import GREEN, VERMILION
from kvplan.reports.plots.canvas import FAINT, finish, from_zero, panels, thousands
from kvplan.reports.plots.throughput import LINE_LOOKS
from kvplan.reports.searches import LOAD_LABELS, Search, objectives_phrase, searches
from kvplan.reports.wording import plural, setting
from kvplan.runs.answers.slo_result import load_text
from kvplan.runs.storage.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_LINES: Final = 6


def draw(run: Run, figure: Figure) -> str | None:
    """Left: share of requests with its 95 % interval, a full mark where most runs keep the SLO. Right: goodput."""
    found = searches(run)[:_MOST_LINES]
    if not found:
        return None
    left, right = panels(figure, 2)
    for place, search in enumerate(found):
        colour, marker, _ = LINE_LOOKS[place % len(LINE_LOOKS)]
        _shares(left, search.points, colour, marker, _label(search, found))
        _goodput(right, search.points, colour, marker)
    for axes in (left, right):
        _load_axis(axes, found)
    left.set_title("Requests within the SLO, with 95 % interval", fontsize=9.5)
    left.set_ylabel("% of requests")
    left.set_ylim(0, 106)
    left.scatter([], [], marker="o", color=FAINT, label="most runs keep it (p99)")
    left.scatter([], [], marker="o", facecolors="white", edgecolors=FAINT, label="most runs miss it")
    left.legend(loc="best", frameon=True, facecolor="white", edgecolor="none", framealpha=1.0)
    right.set_title("Goodput, bar: lowest to highest run", fontsize=9.5)
    right.set_ylabel("requests/s within the SLO")
    from_zero(right, max(search.points["goodput_high"].max() for search in found))
    return finish(figure, run, _finding(run, found), _held(found))


def _load_axis(axes: Axes, found: Sequence[Search]) -> None:
    """The load, and for a single search the last load that keeps the SLO and the first that does not."""
    from matplotlib.ticker import MaxNLocator

    variable = found[0].variable
    axes.set_xlabel(LOAD_LABELS[variable])
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=variable != "request_rate", min_n_ticks=1))
    axes.xaxis.set_major_formatter(thousands())
    if len(found) > 1:
        return
    if found[0].keeps is not None:
        axes.axvline(found[0].keeps, color=GREEN, linewidth=1.4, linestyle="--", zorder=1)
    if found[0].misses is not None:
        axes.axvline(found[0].misses, color=VERMILION, linewidth=1.4, linestyle=":", zorder=1)


def _label(search: Search, found: Sequence[Search]) -> str:
    """The settings in which the searches differ, '' for a single one."""
    differing = [name for name in search.settings if len({str(other.settings.get(name)) for other in found}) > 1]
    return ", ".join(f"{name} {setting(search.settings[name])}" for name in differing)


def _shares(axes: Axes, points: pd.DataFrame, colour: str, marker: str, label: str) -> None:
    shares = 100 * points["share"]
    errors = [(shares - 100 * points["share_low"]).clip(lower=0), (100 * points["share_high"] - shares).clip(lower=0)]
    axes.errorbar(points["value"], shares, yerr=errors, fmt="none", ecolor=colour, alpha=0.5, elinewidth=1.4, capsize=3)
    axes.plot(points["value"], shares, color=colour, linewidth=1.2, alpha=0.6, label=label or None)
    faces = np.where(2 * points["num_keeping"] > points["num_runs"], colour, "white").tolist()
    axes.scatter(points["value"], shares, marker=marker, s=40, facecolors=faces, edgecolors=colour, zorder=3,
                 linewidth=1.4)  # fmt: skip


def _goodput(axes: Axes, points: pd.DataFrame, colour: str, marker: str) -> None:
    axes.plot(points["value"], points["request_goodput"], marker=marker, color=colour, linewidth=1.2)
    axes.vlines(points["value"], points["goodput_low"], points["goodput_high"], color=colour, linewidth=2, alpha=0.5)


def _held(found: Sequence[Search]) -> str:
    first, *others = (search.settings for search in found)
    shared = {
        name: value
        for name, value in first.items()
        if value is not None and all(other.get(name) == value for other in others)
    }
    return ", ".join(f"{name} {setting(value)}" for name, value in shared.items())


def _finding(run: Run, found: Sequence[Search]) -> str:
    slo = objectives_phrase(run)
    best = max(found, key=lambda search: search.keeps or 0.0)
    if best.keeps is None:
        tried = "with any number of users" if best.variable == "users" else f"at any {best.variable}"
        return f"SLO of {slo} (p99) not met {tried} tried"
    point = best.points[best.points["value"] == best.keeps].iloc[0]
    runs = f"{point['num_keeping']} of {plural(point['num_runs'], 'run')}"
    return f"SLO of {slo} (p99) met up to {load_text(best.variable, best.keeps)} ({runs})"
