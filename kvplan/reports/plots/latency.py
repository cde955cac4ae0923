"""Time to the first token and time per token against max_num_seqs, at the block size of the best trial."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pandas as pd

from kvplan.reports.looks import BLUE, VERMILION
from kvplan.reports.plots.canvas import finish, from_zero, log2_axis, say
from kvplan.reports.selection import Slice, best_trial, spreads, widest_slice
from kvplan.reports.wording import fixed_phrase, short_number
from kvplan.runs.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS: Final = (("ttft", "Time to first token (TTFT)"), ("tpot", "Time per output token (TPOT)"))
# Statistic over requests -> label, colour, line.
_CURVES: Final = {"median": ("median request", BLUE, "o-"), "p99": ("99th percentile", VERMILION, "^--")}


def draw(run: Run, figure: Figure) -> str:
    """Two panels, each with the median and the 99th percentile over requests, in ms."""
    part, block_size = _trials_shown(run)
    if spreads(part.trials, "median_ttft_ms", "max_num_seqs").empty:
        return say(figure, run, "No trial was served, so there are no latencies to show.")
    for axes, (name, title) in zip(figure.subplots(1, 2), _PANELS, strict=True):
        _panel(axes, part.trials, name)
        axes.set_title(title, fontsize=9.5)
    figure.axes[0].legend(loc="best")
    held = f"block_size {short_number(block_size)}, {fixed_phrase(part.fixed)}"
    return finish(figure, run, _finding(part.trials), held)


def _trials_shown(run: Run) -> tuple[Slice, float | None]:
    """The widest slice at the best trial's block size, or at its first one where the best trial is not in it."""
    part = widest_slice(run.measured, ("max_num_seqs", "block_size"))
    sizes = part.trials["block_size"].dropna()
    best = best_trial(run)
    size = best.number("block_size") if best is not None else None
    if size not in set(sizes):
        size = None if sizes.empty else sizes.iloc[0]
    return Slice(part.trials[part.trials["block_size"] == size], part.fixed), size


def _panel(axes: Axes, trials: pd.DataFrame, name: str) -> None:
    curves = {statistic: spreads(trials, f"{statistic}_{name}_ms", "max_num_seqs") for statistic in _CURVES}
    for statistic, points in curves.items():
        _curve(axes, points, *_CURVES[statistic])
    every = pd.concat(curves.values())
    log2_axis(axes, [1.0] if every.empty else list(every.index))
    from_zero(axes, 0.0 if every.empty else every["max"].max())
    axes.set_xlabel("max_num_seqs (log scale)")
    axes.set_ylabel("ms")


def _curve(axes: Axes, points: pd.DataFrame, label: str, colour: str, line: str) -> None:
    axes.plot(points.index, points["median"], line, color=colour, label=label)
    if (points["count"] > 1).any():
        axes.fill_between(points.index, points["min"], points["max"], color=colour, alpha=0.18, linewidth=0)


def _finding(trials: pd.DataFrame) -> str:
    first = spreads(trials, "median_ttft_ms", "max_num_seqs")["median"]
    each = spreads(trials, "median_tpot_ms", "max_num_seqs")["median"]
    low, high = (short_number(place) for place in (first.index.min(), first.index.max()))
    if low == high or each.empty:
        tpot = "" if each.empty else f", TPOT {short_number(each.iloc[0])} ms"
        return f"Median TTFT {_ends(first)} ms{tpot} at max_num_seqs {low}"
    return f"Median TTFT {_ends(first)} ms, TPOT {_ends(each)} ms (max_num_seqs {low} to {high})"


def _ends(points: pd.Series) -> str:
    """The first and the last of the points."""
    low, high = short_number(points.iloc[0]), short_number(points.iloc[-1])
    return low if len(points) == 1 else f"{low} → {high}"
