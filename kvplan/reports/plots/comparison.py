"""Two runs in one picture: throughput of both at the shared settings, and the ratio setting by setting."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from kvplan.reports.comparison import Comparison, Match
from kvplan.reports.plots.canvas import FAINT, finish, from_zero, say, thousands
from kvplan.reports.statuses import BLUE, ORANGE, VERMILION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SAME: Final = 0.05


def draw(comparison: Comparison, figure: Figure) -> str:
    """Left: one mark per shared setting. Right: second / first against max_num_seqs. The band is +-5 %."""
    run = comparison.runs[1]
    both = [match for match in comparison.matches if match.ratio("output_throughput") is not None]
    if not both:
        return say(figure, run, "No setting was served in both runs: there is no throughput to compare.")
    left, right = figure.subplots(1, 2)
    _scatter(left, comparison, both)
    _ratios(right, both)
    middle = statistics.median(comparison.ratios("output_throughput"))
    verdict = "as fast as" if abs(middle - 1) <= _SAME / 2 else f"{middle:.2f} times as fast as"
    finding = f"{comparison.names[1]} is {verdict} {comparison.names[0]} (median of {len(both)} shared settings)"
    return finish(figure, run, finding)


def _speeds(matches: list[Match]) -> tuple[list[float], list[float]]:
    pairs = [match.figures["output_throughput"] for match in matches]
    return [one.median for one, _ in pairs if one], [other.median for _, other in pairs if other]


def _scatter(axes: Axes, comparison: Comparison, both: list[Match]) -> None:
    first, second = _speeds(both)
    high = max([*first, *second]) * 1.1
    axes.plot([0, high], [0, high], color=FAINT, linewidth=1)
    axes.fill_between([0, high], [0, high * (1 - _SAME)], [0, high * (1 + _SAME)], color="#DDDDDD", linewidth=0)
    axes.scatter(first, second, color=BLUE, s=34, alpha=0.8, zorder=3)
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


def _ratios(axes: Axes, both: list[Match]) -> None:
    batches = sorted(
        {str(match.settings.get("max_num_seqs", "")) for match in both}, key=lambda text: (len(text), text)
    )
    ratios = [match.ratio("output_throughput") or 0.0 for match in both]
    places = [batches.index(str(match.settings.get("max_num_seqs", ""))) for match in both]
    axes.axhspan(1 - _SAME, 1 + _SAME, color="#DDDDDD", linewidth=0)
    axes.axhline(1, color=FAINT, linewidth=1)
    axes.scatter(places, ratios, color=ORANGE, edgecolor="#333333", linewidth=0.5, s=34, zorder=3)
    for place in range(len(batches)):
        middle = statistics.median(ratio for ratio, at in zip(ratios, places, strict=True) if at == place)
        axes.hlines(middle, place - 0.3, place + 0.3, color=VERMILION, linewidth=2.5, zorder=4)
        axes.annotate(f"{middle:.2f}", (place + 0.3, middle), textcoords="offset points", xytext=(2, 3), fontsize=8)
    axes.set_xticks(range(len(batches)), batches)
    axes.set_xlim(-0.6, max(1.0, len(batches) - 0.25))
    from_zero(axes, max(ratios))
    axes.set_title("Second / first (line: median; band: within 5 %)", fontsize=9.5)
    axes.set_xlabel("max_num_seqs")
    axes.set_ylabel("ratio of output throughput")
