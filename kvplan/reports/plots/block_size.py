"""What the block size costs and gives: empty slots in allocated blocks, and throughput."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from kvplan.reports.looks import BLUE, ORANGE
from kvplan.reports.plots.canvas import finish, from_zero, panels
from kvplan.reports.selection import best_trial, is_busy, slices, spreads
from kvplan.reports.wording import fixed_phrase, short_number
from kvplan.runs.storage.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(run: Run, figure: Figure) -> str | None:
    """Two panels over the same block sizes, as near to the best trial as they were varied: a dot per trial, a bar at
    the median. One panel where nothing was computed, None where one block size was tried."""
    served = run.served.dropna(subset=["block_size", "frag_pct"])
    found = [part for part in slices(served, ("block_size",), best_trial(run))
             if part.trials["block_size"].nunique() > 1]  # fmt: skip
    if not found:
        return None
    trials = found[0].trials
    left, *others = panels(figure, 1 if run.is_counted else 2)
    _panel(left, trials, "frag_pct", ORANGE)
    left.set_title("KV waste: empty slots in allocated blocks", fontsize=9.5)
    left.set_ylabel("% of the slots")
    for right in others:
        _panel(right, trials, "output_throughput", BLUE)
        right.set_title("Output throughput", fontsize=9.5)
        right.set_ylabel("tokens/s")
    return finish(
        figure,
        run,
        _finding(trials, is_noisy=is_busy(run)),
        fixed_phrase(run, found[0].fixed) + " (bar: median, dot: trial)",
    )


def _panel(axes: Axes, trials: pd.DataFrame, column: str, colour: str) -> None:
    points = spreads(trials, column, "block_size")
    places = {size: place for place, size in enumerate(points.index)}
    axes.bar(range(len(points)), points["median"], width=0.62, color=colour, alpha=0.35)
    axes.scatter(trials["block_size"].map(places), trials[column], s=22, color=colour, edgecolor="#333333",
                 linewidth=0.5, zorder=3)  # fmt: skip
    for place, point in enumerate(points.itertuples()):
        axes.annotate(short_number(point.median), (place, point.max), textcoords="offset points", xytext=(0, 6),
                      ha="center", fontsize=9)  # fmt: skip
    axes.set_xticks(range(len(points)), [short_number(size) for size in points.index])
    axes.set_xlim(-0.6, len(points) - 0.4)
    axes.set_xlabel("block_size (tokens)")
    axes.grid(visible=False, axis="x")
    from_zero(axes, 1.04 * points["max"].max())


def _finding(trials: pd.DataFrame, *, is_noisy: bool) -> str:
    """What block_size changes. is_noisy: throughputs on a busy machine differ anyway; repeated ones say by how much."""
    waste = trials.groupby("block_size")["frag_pct"].median()
    rates = trials.groupby("block_size")["output_throughput"].median().dropna()
    small, large = waste.index.min(), waste.index.max()
    wasted = (
        f"KV waste {short_number(waste[small])} % at block_size {short_number(small)}, "
        f"{short_number(waste[large])} % at {short_number(large)}"
    )
    if rates.empty:
        return wasted
    gap = 100 * (rates.max() / rates.min() - 1) if rates.min() else 0
    if is_noisy:
        runs = spreads(trials, "output_throughput", "block_size")
        apart = 100 * (runs["max"] / runs["min"] - 1)[runs["count"] > 1]
        if apart.empty or gap <= apart.max():
            return f"{wasted}; a busy machine shows no difference in throughput"
    return f"{wasted}; throughput varies by {gap:.0f} %"
