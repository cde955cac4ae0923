"""What the block size costs and gives: empty slots in allocated blocks, and throughput."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from kvplan.reports.looks import BLUE, ORANGE
from kvplan.reports.plots.canvas import finish, from_zero, say
from kvplan.reports.selection import spreads, widest_slice
from kvplan.reports.wording import fixed_phrase, short_number
from kvplan.runs.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(run: Run, figure: Figure) -> str:
    """Two panels over the same block sizes: a dot per trial, a bar at the median."""
    part = widest_slice(run.measured, ("block_size", "max_num_seqs"))
    wasted = part.trials.dropna(subset=["block_size", "frag_pct"])
    batch = _widest_batch(part.trials)
    served = part.trials[part.trials["max_num_seqs"] == batch].dropna(subset=["block_size"])
    if wasted.empty or served.empty:
        return say(figure, run, "No trial was served, so there are no block sizes to compare.")
    left, right = figure.subplots(1, 2)
    _panel(left, wasted, "frag_pct", ORANGE)
    left.set_title("KV waste: empty slots in allocated blocks", fontsize=9.5)
    left.set_ylabel("internal fragmentation (%)")
    _panel(right, served, "output_throughput", BLUE)
    right.set_title(f"Output throughput at max_num_seqs {short_number(batch)}", fontsize=9.5)
    right.set_ylabel("output throughput (tokens/s)")
    return finish(figure, run, _finding(wasted, served), fixed_phrase(part.fixed) + " (bar: median, dot: trial)")


def _widest_batch(trials: pd.DataFrame) -> float | None:
    """The max_num_seqs that met the most block sizes; ties: the largest."""
    sizes = trials.groupby("max_num_seqs")["block_size"].nunique()
    return None if sizes.empty else sizes[sizes == sizes.max()].index.max()


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
    axes.set_xlim(-0.6, max(len(points), 2) - 0.4)
    axes.set_xlabel("block_size (tokens)")
    axes.grid(visible=False, axis="x")
    from_zero(axes, 1.04 * points["max"].max())


def _finding(wasted: pd.DataFrame, served: pd.DataFrame) -> str:
    waste = wasted.groupby("block_size")["frag_pct"].median()
    rates = served.groupby("block_size")["output_throughput"].median()
    small, large = waste.index.min(), waste.index.max()
    if small == large:
        return f"block_size {short_number(small)} wastes {short_number(waste[small])} % of the KV memory it allocates"
    gap = 100 * (rates.max() / rates.min() - 1) if rates.min() else 0
    return (
        f"KV waste {short_number(waste[small])} % at block_size {short_number(small)}, "
        f"{short_number(waste[large])} % at {short_number(large)}; throughput varies by {gap:.0f} %"
    )
