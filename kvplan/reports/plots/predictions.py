"""What was predicted before the start against what was measured: blocks, concurrency, throughput, latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pandas as pd

from kvplan.reports.looks import look_of
from kvplan.reports.plots.canvas import FAINT, finish, is_narrow, thousands
from kvplan.reports.wording import plural, short_number
from kvplan.runs.storage.reader import WHOLE_COLUMNS, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class ColumnPair:
    """A predicted column and the measured one it is compared with."""

    title: str
    predicted: str
    measured: str
    unit: str
    is_speed: bool = False


PAIRS: Final = (
    ColumnPair("KV pool blocks", "num_blocks_predicted", "num_blocks_total", "blocks"),
    ColumnPair("Peak concurrency", "pred_max_concurrency", "meas_max_concurrency", "sequences"),
    ColumnPair("Output throughput", "pred_output_throughput", "output_throughput", "tokens/s", is_speed=True),
    ColumnPair("Median TTFT", "pred_median_ttft_ms", "median_ttft_ms", "ms", is_speed=True),
    ColumnPair("Median TPOT", "pred_median_tpot_ms", "median_tpot_ms", "ms", is_speed=True),
)
_COLUMNS: Final = 3


def points_of(trials: pd.DataFrame, pair: ColumnPair) -> pd.DataFrame:
    """One row per trial with both figures and a positive measured one: the two, status, error_pct and is_blind.

    is_blind: a speed estimated before anything was measured on the device, as of a first trial without a profile.
    """
    found = trials[[pair.predicted, pair.measured, "status"]].dropna()
    found.columns = ["predicted", "measured", "status"]
    found = found[found["measured"] > 0]
    origins = trials.loc[found.index, ["prediction_origin", "learned_time_factor"]]
    is_blind = pair.is_speed & (origins["prediction_origin"] == "roofline") & (origins["learned_time_factor"] == 1)
    return found.assign(error_pct=100 * (found["predicted"] / found["measured"] - 1), is_blind=is_blind)


def draw(run: Run, figure: Figure) -> str | None:
    """One square panel per pair that has points, with the line on which a prediction is right. None where nothing
    started."""
    shown = [(pair, points) for pair in PAIRS if not (points := points_of(run.frame, pair)).empty]
    if not shown:
        return None
    columns = 1 if is_narrow(figure) else min(len(shown), _COLUMNS)
    rows = -(-len(shown) // columns)
    figure.set_figheight(1.0 + (2.9 if is_narrow(figure) else 3.55) * rows)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, (pair, points) in zip(panels, shown, strict=False):
        _panel(axes, pair, points)
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    panels[0].legend(loc="upper left", handletextpad=0.3)
    blind = [axes for axes, (_, points) in zip(panels, shown, strict=False) if points["is_blind"].any()]
    if blind:
        blind[0].legend(loc="best", handletextpad=0.3)
    return finish(figure, run, _finding(run, shown))


def _panel(axes: Axes, pair: ColumnPair, points: pd.DataFrame) -> None:
    values = points[["predicted", "measured"]]
    low, high = values[values > 0].min().min(), values.max().max()
    wide = high > 12 * low
    limits = (low / 1.6, high * 1.6) if wide else (0, high * 1.15)
    axes.plot(limits, limits, color=FAINT, linewidth=1, zorder=1)
    blind = points[points["is_blind"]]
    axes.scatter(blind["predicted"], blind["measured"], s=34, zorder=3, facecolor="none", edgecolor="#333333",
                 linewidth=0.9, label="before any trial" if len(blind) else None)  # fmt: skip
    for status, group in points[~points["is_blind"]].groupby("status", sort=False):
        axes.scatter(group["predicted"], group["measured"], s=34, alpha=0.8, zorder=3, color=look_of(status).colour,
                     edgecolor="#333333", linewidth=0.6, label=status)  # fmt: skip
    if wide:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlim(limits)
    axes.set_ylim(limits)
    axes.set_box_aspect(1)
    for axis in (axes.xaxis, axes.yaxis):
        _few_ticks(axis, limits if wide else None, 4 if is_narrow(axes) else 5, whole=pair.measured in WHOLE_COLUMNS)
    axes.set_title(f"{pair.title}\n{_error_phrase(points)}", fontsize=9.5)
    axes.set_xlabel(f"predicted ({pair.unit})")
    axes.set_ylabel(f"measured ({pair.unit})")


def _few_ticks(axis: Axis, log_limits: tuple[float, float] | None, most: int, *, whole: bool) -> None:
    """At most about six labelled ticks: 1 and 3 of each decade on a short logarithmic axis, decades on a long one."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    if log_limits is None:
        axis.set_major_locator(MaxNLocator(most, integer=whole))
    else:
        is_short = log_limits[1] < 100 * log_limits[0]
        axis.set_major_locator(LogLocator(subs=(1, 3) if is_short else (1,), numticks=8 if is_short else 6))
    axis.set_major_formatter(thousands())
    axis.set_minor_formatter(NullFormatter())


def _error_phrase(points: pd.DataFrame) -> str:
    """Return the error of predictions that had something to go by, where there are any."""
    informed = points[~points["is_blind"]]
    if informed.empty:
        return f"error before any trial: max {short_number(points['error_pct'].abs().max())} %"
    sizes = informed["error_pct"].abs()
    if not sizes.max():
        return "exact in " + plural(len(informed), "trial")
    median, most = short_number(sizes.median()), short_number(sizes.max())
    whose = "filled: error" if len(informed) < len(points) else "error: median"
    return f"{whose} {median} %, max {most} %"


def _finding(run: Run, shown: Sequence[tuple[ColumnPair, pd.DataFrame]]) -> str:
    pair, points = shown[0]
    # Where the predicted speeds come from, as far as the rows say so.
    found = [_ORIGINS[name] for name in run.frame["prediction_origin"].unique() if name in _ORIGINS]
    origins, worst = f"; speeds: {', '.join(found)}" if found else "", points["error_pct"].abs().max()
    if pair is not PAIRS[0]:
        return f"{pair.title}: {_error_phrase(points)}{origins}"
    if not worst:
        return f"Blocks predicted exactly in {plural(len(points), 'trial')}{origins}"
    return f"Predicted blocks are off by at most {short_number(worst)} % in {plural(len(points), 'trial')}{origins}"


_ORIGINS: Final = {
    "roofline": "estimated (kvplan calibrate fits them)",
    "measured": "from a profile of this model and device",
    "calibrated": "from a profile of this device, fitted to another model",
    "kernels": "from kernels measured on this device",
    "scaled": "from kernels measured on a GPU of its kind",
}
