"""Output throughput against max_num_seqs, one line per block size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvplan.reports.plots.canvas import finish, from_zero, log2_axis, say
from kvplan.reports.selection import Slice, Spread, knee, spreads, widest_slice
from kvplan.reports.statuses import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILION
from kvplan.reports.wording import fixed_phrase, short_number
from kvplan.runs.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart by colour, marker and dash, so that a grey print still reads.
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
    """Median line with the range of the repetitions; the finding names the best point and where more stops helping."""
    part = widest_slice(run.measured, ("max_num_seqs", "block_size"))
    lines = lines_by_block_size(part, "output_throughput", "max_num_seqs")
    if not lines:
        return say(figure, run, "No trial was served: there is no throughput to show.")
    axes = figure.subplots()
    for place, (block_size, points) in enumerate(lines.items()):
        draw_line(axes, points, f"block_size {short_number(block_size)}", place)
    log2_axis(axes, [place for points in lines.values() for place in points])
    from_zero(axes, max(point.high for points in lines.values() for point in points.values()))
    axes.set_xlabel("max_num_seqs (sequences in one step, log scale)")
    axes.set_ylabel("output throughput (tokens/s)")
    axes.legend(loc="best")
    return finish(figure, run, _finding(lines), fixed_phrase(part.fixed))


def lines_by_block_size(part: Slice, column: str, by: str) -> dict[float, dict[float, Spread]]:
    """block size -> {place: spread}, ascending, empty lines left out."""
    sizes = sorted({size for trial in part.trials if (size := trial.number("block_size")) is not None})
    lines = {
        size: spreads((trial for trial in part.trials if trial.number("block_size") == size), column, by)
        for size in sizes
    }
    return {size: points for size, points in lines.items() if points}


def draw_line(axes: Axes, points: dict[float, Spread], label: str, place: int) -> None:
    """One line: medians, and where there were repetitions a band from the lowest to the highest."""
    colour, marker, dash = LINE_LOOKS[place % len(LINE_LOOKS)]
    places = list(points)
    axes.plot(places, [point.median for point in points.values()], dash, marker=marker, color=colour, label=label)
    if any(point.count > 1 for point in points.values()):
        low, high = [point.low for point in points.values()], [point.high for point in points.values()]
        axes.fill_between(places, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.vlines(places, low, high, color=colour, linewidth=1)


def _finding(lines: dict[float, dict[float, Spread]]) -> str:
    block_size, place, highest = max(
        ((size, place, point.median) for size, points in lines.items() for place, point in points.items()),
        key=lambda entry: entry[2],
    )
    best = (
        f"{short_number(highest)} tokens/s at max_num_seqs {short_number(place)}, block_size {short_number(block_size)}"
    )
    medians = {place: point.median for place, point in lines[block_size].items()}
    bend = knee(medians)
    if bend is None or len(medians) < 3:
        return f"Highest output throughput: {best}"
    if bend >= max(medians):
        return f"Throughput still grows at the largest batch tried: {best}"
    return f"Throughput stops growing at max_num_seqs {short_number(bend)}; highest: {best}"
