"""What was predicted before the start against what came: blocks, concurrency, throughput, latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan.reports.plots.canvas import FAINT, finish, say, thousands
from kvplan.reports.statuses import look_of
from kvplan.reports.wording import plural, short_number
from kvplan.runs.reader import Run, Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Comparison:
    """One predicted column and the measured one it is held against."""

    title: str
    predicted: str
    measured: str
    unit: str


COMPARISONS: Final = (
    Comparison("Blocks of the KV pool", "num_blocks_predicted", "num_blocks_total", "blocks"),
    Comparison("Most sequences at once", "pred_max_concurrency", "meas_max_concurrency", "sequences"),
    Comparison("Output throughput", "pred_output_throughput", "output_throughput", "tokens/s"),
    Comparison("TTFT, median", "pred_median_ttft_ms", "median_ttft_ms", "ms"),
    Comparison("TPOT, median", "pred_median_tpot_ms", "median_tpot_ms", "ms"),
)
_COLUMNS: Final = 3


@dataclass(frozen=True, slots=True)
class Pair:
    predicted: float
    measured: float
    status: str

    @property
    def error_pct(self) -> float:
        return 100 * (self.predicted - self.measured) / self.measured


def pairs(trials: Sequence[Trial], comparison: Comparison) -> list[Pair]:
    """Rows that hold both figures, with a positive measured one."""
    found = []
    for trial in trials:
        predicted, measured = trial.number(comparison.predicted), trial.number(comparison.measured)
        if predicted is not None and measured is not None and measured > 0:
            found.append(Pair(predicted, measured, trial.status))
    return found


def draw(run: Run, figure: Figure) -> str:
    """One square panel per comparison that has points, with the line on which a prediction is right."""
    shown = [(comparison, found) for comparison in COMPARISONS if (found := pairs(run.trials, comparison))]
    if not shown:
        return say(figure, run, "No trial started: nothing measured stands beside the predictions.")
    columns = min(len(shown), _COLUMNS)
    rows = -(-len(shown) // columns)
    figure.set_size_inches(figure.get_figwidth(), 1.0 + 3.2 * rows)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, (comparison, found) in zip(panels, shown, strict=False):
        _panel(axes, comparison, found)
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    panels[0].legend(loc="upper left", handletextpad=0.3)
    return finish(figure, run, _finding(run, shown))


def _panel(axes: Axes, comparison: Comparison, found: list[Pair]) -> None:
    values = [value for pair in found for value in (pair.predicted, pair.measured) if value > 0]
    low, high = min(values), max(values)
    wide = high > 12 * low
    limits = (low / 1.6, high * 1.6) if wide else (0, high * 1.15)
    axes.plot(limits, limits, color=FAINT, linewidth=1, zorder=1)
    for status in dict.fromkeys(pair.status for pair in found):
        points = [pair for pair in found if pair.status == status]
        axes.scatter([p.predicted for p in points], [p.measured for p in points], s=34, alpha=0.8, zorder=3,
                     color=look_of(status).colour, edgecolor="#333333", linewidth=0.6, label=status)  # fmt: skip
    if wide:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlim(limits)
    axes.set_ylim(limits)
    axes.set_box_aspect(1)
    for axis in (axes.xaxis, axes.yaxis):
        _few_ticks(axis, limits if wide else None)
    axes.set_title(f"{comparison.title}\n{_error_phrase(found)}", fontsize=9.5)
    axes.set_xlabel(f"predicted ({comparison.unit})")
    axes.set_ylabel(f"measured ({comparison.unit})")


def _few_ticks(axis: Any, log_limits: tuple[float, float] | None) -> None:
    """At most about six labelled ticks: 1, 2, 5 of each decade on a short logarithmic axis, decades on a long one."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    if log_limits is None:
        axis.set_major_locator(MaxNLocator(5))
    else:
        is_short = log_limits[1] < 100 * log_limits[0]
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if is_short else (1,), numticks=12 if is_short else 6))
    axis.set_major_formatter(thousands())
    axis.set_minor_formatter(NullFormatter())


def _error_phrase(found: list[Pair]) -> str:
    errors = sorted(abs(pair.error_pct) for pair in found)
    if not errors[-1]:
        return "exact in " + plural(len(found), "trial")
    return f"error: median {short_number(errors[len(errors) // 2])} %, largest {short_number(errors[-1])} %"


def _finding(run: Run, shown: list[tuple[Comparison, list[Pair]]]) -> str:
    comparison, found = shown[0]
    origins = _origins_phrase(run)
    worst = max(abs(pair.error_pct) for pair in found)
    if comparison is not COMPARISONS[0]:
        return f"{comparison.title}: {_error_phrase(found)}{origins}"
    if not worst:
        return f"Predicted and allocated blocks are equal in {plural(len(found), 'trial')}{origins}"
    return f"Predicted blocks are off by at most {short_number(worst)} % in {plural(len(found), 'trial')}{origins}"


_ORIGINS: Final = {
    "roofline": "guessed (kvplan calibrate learns them)",
    "measured": "from a profile of this model and device",
    "calibrated": "from a profile of this device, fitted to another model",
}


def _origins_phrase(run: Run) -> str:
    """Where the speeds were taken from, as far as the rows say so."""
    named = dict.fromkeys(trial.text("prediction_origin") for trial in run.trials)
    found = [_ORIGINS[name] for name in named if name in _ORIGINS]
    return f"; speeds: {', '.join(found)}" if found else ""
