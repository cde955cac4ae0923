"""Output throughput over max_num_seqs, or what was varied instead: lines through the best trial and near it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pandas as pd

from kvplan.reports.looks import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILION
from kvplan.reports.plots.canvas import finish, from_zero, is_narrow, outer_legend, setting_axis
from kvplan.reports.selection import ROOM_COLUMNS, Curves, TrialSlice, curves, is_busy, knee, spreads
from kvplan.reports.wording import asked_name, curves_phrase, setting, short_number
from kvplan.runs.storage.reader import Run

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

# On a phone, a longer label would cover the lines.
_LONG_LABEL: Final = 22


def draw(run: Run, figure: Figure) -> str | None:
    """Median lines with the range of the repetitions; the finding names the best point and where more stops helping.

    None where nothing was varied.
    """
    found = curves(run, len(LINE_LOOKS))
    if found is None:
        return None
    axes = figure.subplots()
    for place, part in enumerate(sorted(found.lines, key=lambda part: _order(part, found.names))):
        _draw_line(axes, _points(part, found.x), _label(part, found.names), place)
    every = pd.concat([_points(part, found.x) for part in found.lines])
    x_name = asked_name(run, found.x)
    setting_axis(axes, x_name, list(every.index))
    from_zero(axes, every["max"].max())
    axes.set_ylabel("output throughput (tokens/s)")
    if found.names:
        handles, labels = axes.get_legend_handles_labels()
        if is_narrow(axes) and max(map(len, labels)) > _LONG_LABEL:
            outer_legend(axes, handles, labels)
        else:
            axes.legend(loc="best")
    return finish(
        figure,
        run,
        _finding(found, x_name, is_noisy=is_busy(run) and not _is_repeated(found)),
        curves_phrase(run, found),
        compares_speeds=True,
    )


def _order(part: TrialSlice, names: Sequence[str]) -> list[tuple[bool, object]]:
    """Numbers ascending; a missing setting first."""
    values = [part.fixed.get(name, 0) for name in names]
    return [(isinstance(value, str), value) for value in values]


def _points(part: TrialSlice, x: str) -> pd.DataFrame:
    return spreads(part.trials, "output_throughput", x)


def _label(part: TrialSlice, names: Sequence[str]) -> str:
    return ", ".join(f"{name} {setting(part.fixed.get(name))}" for name in names)


def _draw_line(axes: Axes, points: pd.DataFrame, label: str, place: int) -> None:
    """Medians, and where there were repetitions a band from the lowest to the highest."""
    colour, marker, dash = LINE_LOOKS[place % len(LINE_LOOKS)]
    axes.plot(points.index, points["median"], dash, marker=marker, color=colour, label=label)
    if (points["count"] > 1).any():
        axes.fill_between(points.index, points["min"], points["max"], color=colour, alpha=0.18, linewidth=0)
        axes.vlines(points.index, points["min"], points["max"], color=colour, linewidth=1)


def _is_repeated(found: Curves) -> bool:
    """Whether repetitions show the noise."""
    return all((_points(part, found.x)["count"] > 1).any() for part in found.lines)


def _range(found: Curves, x_name: str) -> str:
    """More room is not more speed once everything fits, so the highest value would be that of noise."""
    every = pd.concat([_points(part, found.x)["median"] for part in found.lines])
    low, high = short_number(every.min()), short_number(every.max())
    return f"{low} to {high} tokens/s over {x_name} {setting(every.index.min())} to {setting(every.index.max())}"


def _finding(found: Curves, x_name: str, *, is_noisy: bool) -> str:
    if is_noisy:
        return f"{_range(found, x_name)}, on a busy machine: what is best cannot be told"
    highest = max(found.lines, key=lambda part: _points(part, found.x)["median"].max())
    medians = _points(highest, found.x)["median"]
    where = ", ".join(filter(None, (f"{x_name} {setting(medians.idxmax())}", _label(highest, found.names))))
    best = f"{short_number(medians.max())} tokens/s ({where})"
    if found.x in ROOM_COLUMNS:
        return _range(found, x_name)
    bend = knee(medians)
    if bend is None or len(medians) < 3 or found.x != "max_num_seqs":
        return f"Highest throughput{'' if found.has_best else ' shown'}: {best}"
    if bend >= medians.index.max():
        return f"Still rising at the largest batch: {best}"
    if bend == medians.idxmax():
        return f"Throughput peaks at {best}"
    return f"Throughput levels off at max_num_seqs {short_number(bend)}; best {best}"
