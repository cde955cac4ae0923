"""Several runs in one picture: a line for each setting, a mark for each engine; throughput left, TPOT right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

import pandas as pd

from kvplan.reports.looks import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILION
from kvplan.reports.plots.canvas import FAINT, finish, is_narrow, panels, thousands
from kvplan.reports.side_by_side import SideBySide, engine_of
from kvplan.reports.wording import of_both, setting
from kvplan.runs.statuses import MEASURED_STATUSES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKS: Final[tuple[Literal["o", "s", "D", "^", "v", "P", "X"], ...]] = ("o", "s", "D", "^", "v", "P", "X")
_COLOURS: Final = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY_BLUE, BLACK)
MOST_RUNS: Final = len(_MARKS)
_MOST_LINES: Final = 24
_LINE_INCHES: Final = 0.27
_NARROW_LINE_INCHES: Final = 0.4
_LEGEND_CHARACTERS: Final = 56
"""A legend that is wider than the axes above it would take their place from them."""
_LEGEND_INCHES: Final = 0.32
"""From the axes down to the legend: the tick labels stand between."""


def draw(compared: SideBySide, figure: Figure) -> str | None:
    """None where no setting that several tried was served by any run."""
    # The settings that some run served, as many as fit; the first ones, in their order.
    table = _served(compared).head(_MOST_LINES)
    if table.empty:
        return None
    names = [_line_name(compared, row, narrow=is_narrow(figure)) for _, row in table.iterrows()]
    shown = panels(figure, 2)
    num_columns = 1 if is_narrow(figure) else _num_legend_columns([side.label for side in compared.sides])
    needed = 2.2 + 2 * _NARROW_LINE_INCHES * len(table) if is_narrow(figure) else 1.9 + _LINE_INCHES * len(table)
    figure.set_figheight(max(figure.get_figheight(), needed))
    for axes, column, title in (
        (shown[0], "output_throughput", "Output throughput (tokens/s)"),
        (shown[1], "median_tpot_ms", "Median TPOT (ms)"),
    ):
        _lines(axes, compared, table, column)
        axes.set_title(title, fontsize=9.5)
        axes.set_yticks(range(len(names)), names if axes is shown[0] or is_narrow(figure) else [""] * len(names))
        axes.tick_params(axis="y", labelsize=8)
        axes.set_ylim(len(names) - 0.4, -0.6)
    _mark_failures(shown[0], compared, table)
    _legend(shown[-1] if is_narrow(figure) else shown[0], num_columns)
    return finish(figure, compared.sides[0].run, _finding(compared), _left_out(compared), _circumstances(compared))


def _served(compared: SideBySide) -> pd.DataFrame:
    table = compared.table
    columns = [f"output_throughput_{place}" for place in range(len(compared.sides))]
    return table[table[columns].notna().any(axis=1)].reset_index(drop=True)


def _lines(axes: Axes, compared: SideBySide, table: pd.DataFrame, column: str) -> None:
    figures = table[[f"{column}_{place}" for place in range(len(compared.sides))]]
    axes.hlines(range(len(table)), figures.min(axis=1), figures.max(axis=1), color=FAINT, linewidth=0.8, zorder=1)
    for place, side in enumerate(compared.sides):
        values, colour, mark = table[f"{column}_{place}"], _COLOURS[place], _MARKS[place]
        axes.scatter(values, range(len(table)), label=side.label, color=colour, marker=mark, s=34, zorder=3)
    highest = figures.max().max()
    axes.set_xlim(0, highest * 1.08 if highest > 0 else 1)
    axes.xaxis.set_major_formatter(thousands())
    axes.grid(axis="y", visible=False)


def _mark_failures(axes: Axes, compared: SideBySide, table: pd.DataFrame) -> None:
    """The status of a run that did not serve the setting, at the left edge, in its colour; two below each other."""
    for line in range(len(table)):
        statuses = enumerate(table[f"status_{place}"][line] for place in range(len(compared.sides)))
        failed = [(place, each) for place, each in statuses if isinstance(each, str) and each not in MEASURED_STATUSES]
        for number, (place, status) in enumerate(failed):
            offset = (4, 4 - 8 * number)
            colour = _COLOURS[place]
            axes.annotate(status, (0, line), textcoords="offset points", xytext=offset, fontsize=7, color=colour)


def _num_legend_columns(labels: Sequence[str]) -> int:
    """Return as many labels in a line as stand below the axes, with their marks."""
    return max(1, min(len(labels), _LEGEND_CHARACTERS // (max(map(len, labels)) + 4)))


def _legend(axes: Axes, num_columns: int) -> None:
    """Below the axes, where it covers no mark."""
    from matplotlib.transforms import ScaledTranslation

    figure = axes.get_figure(root=True)
    assert figure is not None, "axes belong to a figure"
    place = axes.transAxes + ScaledTranslation(0, -_LEGEND_INCHES, figure.dpi_scale_trans)
    axes.legend(loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=place, ncols=num_columns, fontsize=8)


def _line_name(compared: SideBySide, row: pd.Series, *, narrow: bool) -> str:
    parts = [
        f"{name} {setting(row[name])}"
        for name in compared.settings
        if row[name] not in ("", "inf") and row[name] == row[name]
    ]
    return (",\n" if narrow else ", ").join(parts) or "the one setting"


def _finding(compared: SideBySide) -> str:
    """The run whose throughput differs most from the first one's."""
    first = compared.sides[0].label
    middles = {
        side.label: (float(ratios.median()), len(ratios))
        for place, side in enumerate(compared.sides[1:], start=1)
        if not (ratios := compared.ratios(place)).empty
    }
    if not middles:
        return f"{first} and {compared.sides[1].label} served no setting both"
    parts = [f"{middle:.2f} ({label})" for label, (middle, _) in middles.items()]
    number = max(count for _, count in middles.values())
    return f"Output throughput over that of {first}: {', '.join(parts)}; {of_both(number)}"


def _left_out(compared: SideBySide) -> str:
    more = len(_served(compared)) - _MOST_LINES
    return f"the first {_MOST_LINES} settings; {more} more in the table" if more > 0 else ""


def _circumstances(compared: SideBySide) -> str:
    """Model, device (where it is the same) and load of the first run; what differs stands in the table of the page."""
    run = compared.sides[0].run
    engines = ", ".join(dict.fromkeys(engine_of(side.run) for side in compared.sides))
    device = "" if compared.devices else run.first("device_name") or run.first("device")
    return " · ".join(filter(None, (run.first("model_id"), engines, device, run.first("workload"))))
