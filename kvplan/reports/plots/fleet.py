"""Devices side by side: throughput, time per token, sequences at once, and throughput for a dollar an hour, as bars."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kvplan.reports.fleet import DeviceFigures, fleet_sentences
from kvplan.reports.looks import BLUE, GREEN, ORANGE, PURPLE
from kvplan.reports.plots.canvas import finish, is_narrow, panels, thousands
from kvplan.reports.side_by_side import SideBySide
from kvplan.reports.wording import short_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS: Final[tuple[tuple[str, str, Callable[[DeviceFigures], float | None]], ...]] = (
    ("Output tokens/s", BLUE, lambda device: device.output_throughput),
    ("Median TPOT (ms)", ORANGE, lambda device: device.median_tpot_ms),
    ("Sequences at once", PURPLE, lambda device: device.max_running),
    ("Tokens/s per USD/h", GREEN, lambda device: device.tokens_per_second_per_usd),
)


def draw(compared: SideBySide, figure: Figure) -> str | None:
    """None where the runs are of one device, or no device has a figure."""
    devices = compared.devices
    shown = [panel for panel in _PANELS if any(panel[2](device) is not None for device in devices)]
    if not devices or not shown:
        return None
    axes_of = panels(figure, len(shown))
    for place, (axes, (title, colour, figure_of)) in enumerate(zip(axes_of, shown, strict=True)):
        _bars(axes, [figure_of(device) for device in devices], colour)
        axes.set_title(title, fontsize=9.5)
        is_named = place == 0 or is_narrow(figure)
        names = [device.label.replace(" (", "\n(") for device in devices]
        axes.set_yticks(range(len(devices)), names if is_named else [""] * len(devices))
        axes.tick_params(axis="y", labelsize=8)
    run = compared.sides[0].run
    circumstances = " · ".join(filter(None, (run.first("model_id"), run.first("workload"))))
    return finish(figure, run, fleet_sentences(devices)[0].rstrip("."), "each device's fastest setting", circumstances)


def _bars(axes: Axes, values: list[float | None], colour: str) -> None:
    """A bar for each device with its figure at the end; a device without one keeps its line empty."""
    axes.barh(range(len(values)), [value or 0.0 for value in values], color=colour, height=0.6)
    highest = max((value for value in values if value is not None), default=0.0)
    axes.set_xlim(0, highest * 1.3 if highest > 0 else 1)
    axes.set_ylim(len(values) - 0.5, -0.5)
    for line, value in enumerate(values):
        text = "–" if value is None else short_number(value)
        axes.annotate(text, (value or 0.0, line), textcoords="offset points", xytext=(4, -3), fontsize=8)
    axes.xaxis.set_major_formatter(thousands())
    axes.locator_params(axis="x", nbins=4)
    axes.grid(axis="y", visible=False)
