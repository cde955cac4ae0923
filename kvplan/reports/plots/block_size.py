"""What the block size costs and gives: empty slots in allocated blocks, and throughput."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from kvplan.reports.plots.canvas import finish, from_zero, say
from kvplan.reports.selection import widest_slice
from kvplan.reports.statuses import BLUE, ORANGE
from kvplan.reports.wording import fixed_phrase, short_number
from kvplan.runs.reader import Run, Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(run: Run, figure: Figure) -> str:
    """Two panels over the same block sizes: a dot per trial, a bar at the median."""
    part = widest_slice(run.measured, ("block_size", "max_num_seqs"))
    waste = _by_block_size(part.trials, "frag_pct")
    speed = _by_block_size(_fullest_batch(part.trials), "output_throughput")
    if not waste or not speed:
        return say(figure, run, "No trial was served: block sizes cannot be compared.")
    left, right = figure.subplots(1, 2)
    _panel(left, waste, ORANGE)
    left.set_title("KV waste: empty slots of allocated blocks", fontsize=9.5)
    left.set_ylabel("internal fragmentation (%)")
    _panel(right, speed, BLUE)
    batch = short_number(_fullest_batch(part.trials)[0].number("max_num_seqs"))
    right.set_title(f"Output throughput at max_num_seqs {batch}", fontsize=9.5)
    right.set_ylabel("output throughput (tokens/s)")
    return finish(figure, run, _finding(waste, speed), fixed_phrase(part.fixed) + " (bar: median, dot: trial)")


def _by_block_size(trials: tuple[Trial, ...], column: str) -> dict[float, list[float]]:
    found: dict[float, list[float]] = {}
    for trial in sorted(trials, key=lambda trial: trial.number("block_size") or 0.0):
        size, value = trial.number("block_size"), trial.number(column)
        if size is not None and value is not None:
            found.setdefault(size, []).append(value)
    return found


def _fullest_batch(trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """The trials of the max_num_seqs that met the most block sizes; ties: the larger batch."""
    batches: dict[float, list[Trial]] = {}
    for trial in trials:
        batches.setdefault(trial.number("max_num_seqs") or 0.0, []).append(trial)
    if not batches:
        return ()
    fullest = max(batches, key=lambda batch: (len({t.number("block_size") for t in batches[batch]}), batch))
    return tuple(batches[fullest])


def _panel(axes: Axes, values: dict[float, list[float]], colour: str) -> None:
    for place, found in enumerate(values.values()):
        median = statistics.median(found)
        axes.bar(place, median, width=0.62, color=colour, alpha=0.35)
        axes.scatter([place] * len(found), found, s=22, color=colour, edgecolor="#333333", linewidth=0.5, zorder=3)
        axes.annotate(short_number(median), (place, max(found)), textcoords="offset points", xytext=(0, 6), ha="center",
                      fontsize=9)  # fmt: skip
    axes.set_xticks(range(len(values)), [short_number(size) for size in values])
    axes.set_xlim(-0.6, max(len(values), 2) - 0.4)
    axes.set_xlabel("block_size (tokens)")
    axes.grid(visible=False, axis="x")
    from_zero(axes, 1.04 * max(max(found) for found in values.values()))


def _finding(waste: dict[float, list[float]], speed: dict[float, list[float]]) -> str:
    medians = {size: statistics.median(found) for size, found in waste.items()}
    rates = {size: statistics.median(found) for size, found in speed.items()}
    small, large = min(medians), max(medians)
    if small == large:
        return f"block_size {short_number(small)} wastes {short_number(medians[small])} % of the KV memory it allocates"
    gap = 100 * (max(rates.values()) / min(rates.values()) - 1) if min(rates.values()) else 0
    return (
        f"KV waste goes from {short_number(medians[small])} % at block_size {short_number(small)} to "
        f"{short_number(medians[large])} % at {short_number(large)}; throughput differs by {short_number(round(gap))} %"
    )
