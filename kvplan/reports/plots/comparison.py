"""Two runs in one picture: throughput of both at the settings that both served, and the ratio setting by setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pandas as pd

from kvplan.reports.comparison import Comparison
from kvplan.reports.looks import BLUE, ORANGE, VERMILION
from kvplan.reports.plots.canvas import FAINT, finish, from_zero, panels, thousands
from kvplan.reports.wording import of_both, run_phrase, setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SAME: Final = 0.05
_FIRST, _SECOND, _RATIO = (f"output_throughput_{part}" for part in ("first", "second", "ratio"))


def draw(comparison: Comparison, figure: Figure) -> str | None:
    """Left: one mark per setting. Right: second / first against max_num_seqs. The band is +-5 %. None where no
    setting was served in both runs."""
    both = comparison.matches.dropna(subset=[_RATIO])
    if both.empty:
        return None
    left, right = panels(figure, 2)
    _scatter(left, comparison, both)
    _ratios(right, both)
    middle = both[_RATIO].median()
    verdict = "as fast as" if abs(middle - 1) <= _SAME / 2 else f"{middle:.2f} times as fast as"
    finding = f"{comparison.names[1]} is {verdict} {comparison.names[0]} ({of_both(len(both))})"
    return finish(figure, comparison.runs[1], finding, circumstances=_circumstances(comparison))


def _circumstances(comparison: Comparison) -> str:
    """What both runs are of; a line for each where they differ in it."""
    first, second = (run_phrase(run) for run in comparison.runs)
    return first if first == second else f"{comparison.names[0]}: {first}\n{comparison.names[1]}: {second}"


def _scatter(axes: Axes, comparison: Comparison, both: pd.DataFrame) -> None:
    high = both[[_FIRST, _SECOND]].max().max() * 1.1
    axes.plot([0, high], [0, high], color=FAINT, linewidth=1)
    axes.fill_between([0, high], [0, high * (1 - _SAME)], [0, high * (1 + _SAME)], color="#DDDDDD", linewidth=0)
    axes.scatter(both[_FIRST], both[_SECOND], color=BLUE, s=34, alpha=0.8, zorder=3)
    axes.set_xlim(0, high)
    axes.set_ylim(0, high)
    axes.set_box_aspect(1)
    axes.xaxis.set_major_formatter(thousands())
    axes.yaxis.set_major_formatter(thousands())
    axes.set_title("Output throughput (tokens/s)", fontsize=9.5)
    axes.set_xlabel(_clipped(comparison.names[0]))
    axes.set_ylabel(_clipped(comparison.names[1]))


def _clipped(name: str) -> str:
    return name if len(name) <= 44 else f"...{name[-41:]}"


def _ratios(axes: Axes, both: pd.DataFrame) -> None:
    axes.axhspan(1 - _SAME, 1 + _SAME, color="#DDDDDD", linewidth=0)
    axes.axhline(1, color=FAINT, linewidth=1)
    # Where max_num_seqs is what the runs are compared for, all ratios stand in one place without a name.
    batches = both["max_num_seqs"].astype(float) if "max_num_seqs" in both else pd.Series(0.0, index=both.index)
    places = batches.rank(method="dense") - 1
    axes.scatter(places, both[_RATIO], color=ORANGE, edgecolor="#333333", linewidth=0.5, s=34, zorder=3)
    for place, middle in both[_RATIO].groupby(places).median().items():
        axes.hlines(middle, place - 0.3, place + 0.3, color=VERMILION, linewidth=2.5, zorder=4)
        axes.annotate(f"{middle:.2f}", (place + 0.3, middle), textcoords="offset points", xytext=(2, 3), fontsize=8)
    names = sorted(batches.unique())
    axes.set_xticks(range(len(names)), [setting(name) if "max_num_seqs" in both else "" for name in names])
    axes.set_xlim(-0.6, max(1.0, len(names) - 0.25))
    from_zero(axes, both[_RATIO].max())
    axes.set_title("Second / first, line: median, band: 5 %", fontsize=9.5)
    axes.set_xlabel("max_num_seqs")
    axes.set_ylabel("ratio of output throughput")
