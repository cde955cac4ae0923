"""Time to the first token and time per token against max_num_seqs, at the block size of the best trial."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvplan.reports.plots.canvas import finish, from_zero, log2_axis, say
from kvplan.reports.selection import Slice, Spread, best_trial, spreads, widest_slice
from kvplan.reports.statuses import BLUE, VERMILION
from kvplan.reports.wording import fixed_phrase, short_number
from kvplan.runs.reader import Run, Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS: Final = (("ttft", "Time to first token (TTFT)"), ("tpot", "Time per output token (TPOT)"))


def draw(run: Run, figure: Figure) -> str:
    """Two panels, each with the median and the 99th percentile over requests, in ms."""
    part, block_size = _trials_shown(run)
    if not spreads(part.trials, "median_ttft_ms", "max_num_seqs"):
        return say(figure, run, "No trial was served: there are no latencies to show.")
    for axes, (name, title) in zip(figure.subplots(1, 2), _PANELS, strict=True):
        _panel(axes, part.trials, name)
        axes.set_title(title, fontsize=9.5)
    figure.axes[0].legend(loc="best")
    held = ", ".join(filter(None, (block_size and f"block_size {block_size}", fixed_phrase(part.fixed))))
    return finish(figure, run, _finding(part.trials), held)


def _trials_shown(run: Run) -> tuple[Slice, str]:
    part = widest_slice(run.measured, ("max_num_seqs", "block_size"))
    sizes = [trial.number("block_size") for trial in part.trials]
    best = best_trial(run)
    wanted = best.number("block_size") if best is not None else None
    size = wanted if wanted in sizes else next((size for size in sizes if size is not None), None)
    trials = tuple(trial for trial in part.trials if trial.number("block_size") == size)
    return Slice(trials, part.fixed), "" if size is None else short_number(size)


def _panel(axes: Axes, trials: tuple[Trial, ...], name: str) -> None:
    looks = (("median", "median", BLUE, "o", "-"), ("p99", "99th percentile", VERMILION, "^", "--"))
    highest, places = 0.0, [1.0]
    for statistic, label, colour, marker, dash in looks:
        points = spreads(trials, f"{statistic}_{name}_ms", "max_num_seqs")
        if not points:
            continue
        _curve(axes, points, f"{label} of the requests", colour, marker + dash)
        highest, places = max(highest, *(point.high for point in points.values())), list(points)
    log2_axis(axes, places)
    from_zero(axes, highest)
    axes.set_xlabel("max_num_seqs (log scale)")
    axes.set_ylabel("ms")


def _curve(axes: Axes, points: dict[float, Spread], label: str, colour: str, look: str) -> None:
    places = list(points)
    axes.plot(places, [point.median for point in points.values()], look, color=colour, label=label)
    if any(point.count > 1 for point in points.values()):
        low, high = [point.low for point in points.values()], [point.high for point in points.values()]
        axes.fill_between(places, low, high, color=colour, alpha=0.18, linewidth=0)


def _finding(trials: tuple[Trial, ...]) -> str:
    first = {place: point.median for place, point in spreads(trials, "median_ttft_ms", "max_num_seqs").items()}
    each = {place: point.median for place, point in spreads(trials, "median_tpot_ms", "max_num_seqs").items()}
    low, high = (short_number(place) for place in (min(first), max(first)))
    if low == high or not each:
        tpot = f", TPOT {short_number(next(iter(each.values())))} ms" if each else ""
        return f"Median TTFT {_ends(first)} ms{tpot} at max_num_seqs {low}"
    return f"From max_num_seqs {low} to {high} median TTFT goes from {_ends(first)} ms, TPOT from {_ends(each)} ms"


def _ends(points: dict[float, float]) -> str:
    low, high = points[min(points)], points[max(points)]
    return short_number(low) if len(points) == 1 else f"{short_number(low)} to {short_number(high)}"
