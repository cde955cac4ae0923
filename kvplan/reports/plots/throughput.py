"""Output throughput against max_num_seqs, one line per block size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pandas as pd

from kvplan.reports.looks import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILION
from kvplan.reports.plots.canvas import finish, from_zero, log2_axis, say
from kvplan.reports.selection import knee, spreads, widest_slice
from kvplan.reports.wording import fixed_phrase, short_number
from kvplan.runs.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Distinguished by colour, marker and dash, so that a print in grey is still readable.
LINE_LOOKS: Final = (
    (BLUE, "o", "-"),
    (ORANGE, "s", "--"),
    (GREEN, "^", "-."),
    (PURPLE, "D", ":"),
    (VERMILION, "v", "-"),
    (SKY_BLUE, "P", "--"),
    (BLACK, "X", "-."),
)


def draw(run: Run, figure: Figure) -> str:
    """Median lines with the range of the repetitions; the finding names the best point and where more stops helping."""
    part = widest_slice(run.measured, ("max_num_seqs", "block_size"))
    lines = _lines(part.trials)
    if not lines:
        return say(figure, run, "No trial was served, so there is no throughput to show.")
    axes = figure.subplots()
    for place, (block_size, points) in enumerate(lines.items()):
        _draw_line(axes, points, f"block_size {short_number(block_size)}", place)
    every = pd.concat(lines.values())
    log2_axis(axes, list(every.index))
    from_zero(axes, every["max"].max())
    axes.set_xlabel("max_num_seqs (log scale)")
    axes.set_ylabel("output throughput (tokens/s)")
    axes.legend(loc="best")
    return finish(figure, run, _finding(lines), fixed_phrase(part.fixed))


def _lines(trials: pd.DataFrame) -> dict[float, pd.DataFrame]:
    """block size -> ``spreads`` over max_num_seqs, ascending, empty lines left out."""
    lines = {size: spreads(group, "output_throughput", "max_num_seqs") for size, group in trials.groupby("block_size")}
    return {size: points for size, points in lines.items() if not points.empty}


def _draw_line(axes: Axes, points: pd.DataFrame, label: str, place: int) -> None:
    """Medians, and where there were repetitions a band from the lowest to the highest."""
    colour, marker, dash = LINE_LOOKS[place % len(LINE_LOOKS)]
    axes.plot(points.index, points["median"], dash, marker=marker, color=colour, label=label)
    if (points["count"] > 1).any():
        axes.fill_between(points.index, points["min"], points["max"], color=colour, alpha=0.18, linewidth=0)
        axes.vlines(points.index, points["min"], points["max"], color=colour, linewidth=1)


def _finding(lines: Mapping[float, pd.DataFrame]) -> str:
    block_size = max(lines, key=lambda size: lines[size]["median"].max())
    medians = lines[block_size]["median"]
    best = (
        f"{short_number(medians.max())} tokens/s "
        f"(max_num_seqs {short_number(medians.idxmax())}, block_size {short_number(block_size)})"
    )
    bend = knee(medians)
    if bend is None or len(medians) < 3:
        return f"Highest throughput: {best}"
    if bend >= medians.index.max():
        return f"Still rising at the largest batch: {best}"
    if bend == medians.idxmax():
        return f"Throughput peaks at {best}"
    return f"Throughput levels off at max_num_seqs {short_number(bend)}; best {best}"
