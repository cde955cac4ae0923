"""How full the KV pool was over time, and how many sequences ran and waited, in the best and the worst trial."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from kvplan.reports.looks import BLUE, SKY_BLUE, VERMILION
from kvplan.reports.plots.canvas import finish, is_narrow
from kvplan.reports.selection import (
    best_trial,
    fullest_queue_trial,
    most_preempted_trial,
    shown_columns,
    slowest_trial,
)
from kvplan.reports.wording import plural, settings_phrase, short_number
from kvplan.runs.storage.reader import FinishedTrial, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NO_BREAK: Final = "\N{NO-BREAK SPACE}"
# Column of the series -> label, colour, dash.
_QUEUES: Final = {"num_running": ("running", BLUE, "-"), "num_waiting": ("waiting", VERMILION, "--")}


def draw(run: Run, figure: Figure) -> str | None:
    """Two columns (best, worst), two rows (share of blocks, sequences), on a narrow figure all below each other; the
    finding compares the pools' peaks. None where no trial was served."""
    shown = chosen_trials(run)
    if not shown:
        return None
    peak_pct = max(_peak_pct(trial) for _, trial in shown)
    longest_queue = max([1.0, *(_longest_queue(trial) for _, trial in shown)])
    pairs = _pairs_of_axes(figure, len(shown))
    for (name, trial), (above, below) in zip(shown, pairs, strict=True):
        _blocks(above, trial)
        above.set_title(_title(run, name, trial, 40 if is_narrow(figure) else 55), fontsize=8.5)
        _sequences(below, trial)
        below.set_xlabel("steps" if run.is_counted else "time since the first arrival (s)")
        if _tells_usage(trial):
            _scale_blocks(above, peak_pct)
        below.set_ylim(0, 1.5 * longest_queue)
        for axes in (above, below):
            axes.set_xlim(left=0)
            if axes.get_legend_handles_labels()[0]:
                axes.legend(loc="upper right", ncols=2, borderaxespad=0.1, columnspacing=1.0, handlelength=1.4,
                            fontsize=8 if is_narrow(figure) else 9)  # fmt: skip
    for above, below in pairs if is_narrow(figure) else pairs[:1]:
        above.set_ylabel("share of the pool (%)")
        below.set_ylabel("sequences")
    return finish(figure, run, _finding(shown))


def _pairs_of_axes(figure: Figure, count: int) -> list[tuple[Axes, Axes]]:
    """(axes for the blocks, axes for the sequences) of each trial."""
    if is_narrow(figure):
        figure.set_figheight(0.8 + 4.4 * count)
        stacked = figure.subplots(2 * count, 1, height_ratios=[3, 2] * count)
        return [(stacked[2 * place], stacked[2 * place + 1]) for place in range(count)]
    grid = figure.subplots(2, count, squeeze=False, sharex="col", sharey="row", height_ratios=[3, 2])
    return [(grid[0][place], grid[1][place]) for place in range(count)]


def chosen_trials(run: Run) -> list[tuple[str, FinishedTrial]]:
    """(why it is shown, trial): the best, then the one with most preemptions, or the slowest where none preempted.

    Where nothing was computed, the one with the longest queue instead of the slowest.
    """
    chosen: list[tuple[str, FinishedTrial]] = []
    best = best_trial(run)
    if best is not None and best.series is not None:
        goals = [entry.get("goal") for entry in run.entries("best") if entry.get("trial_id") == best.trial_id]
        is_slo = "slo" in goals and "output_throughput" not in goals
        why = "Best (most at once)" if run.is_counted else "Best (for throughput)"
        chosen.append(("Best (fastest within the SLO)" if is_slo else why, best))
    worst, why = most_preempted_trial(run), "Worst (most preemptions)"
    if worst is None or worst is best:
        worst, why = slowest_trial(run), "Worst (lowest throughput)"
    if worst is None:
        worst, why = fullest_queue_trial(run), "Longest queue"
    if worst is not None and worst.series is not None and worst is not best:
        chosen.append((why, worst))
    return chosen


def _blocks(axes: Axes, trial: FinishedTrial) -> None:
    series = trial.series
    assert series is not None, "only trials with a series are chosen"
    slots = (trial.number("num_blocks_total") or 0) * (trial.number("block_size") or 0)
    if not _tells_usage(trial):
        axes.text(0.5, 0.5, "not told by this server", transform=axes.transAxes, ha="center", color="dimgray")
        axes.set_yticks([])
    if "kv_usage" in series:
        axes.fill_between(series["seconds"], 100 * series["kv_usage"], color=SKY_BLUE, alpha=0.55, linewidth=0,
                          label="blocks in use")  # fmt: skip
    if "used_tokens" in series and slots:
        axes.fill_between(series["seconds"], 100 * series["used_tokens"] / slots, color=BLUE, alpha=0.85, linewidth=0,
                          label="slots that hold a token")  # fmt: skip


def _title(run: Run, name: str, trial: FinishedTrial, width: int) -> str:
    """Why the trial is shown, its speed and its settings, in lines of at most ``width`` characters."""
    count = int(trial.number("num_preemptions") or 0)
    ended = plural(count, "preemption") if count else trial.status
    figures = f"{name}: {_amount(run, trial)} ({ended})"
    # A setting and its value stay on one line.
    settings = settings_phrase(trial, shown_columns(run)).replace(" ", _NO_BREAK).replace(f",{_NO_BREAK}", ", ")
    return "\n".join(textwrap.fill(line, width) for line in (figures, settings))


def _amount(run: Run, trial: FinishedTrial) -> str:
    """The trial's speed; of one of several runs that the summary recommends, the median of them beside it."""
    speed = trial.number("output_throughput")
    if speed is None:
        return f"{short_number(trial.number('max_running'))} at once"
    recommended = next((entry for entry in run.entries("best") if entry.get("trial_id") == trial.trial_id), {})
    num_runs, figures = recommended.get("num_runs"), recommended.get("figures")
    if not isinstance(num_runs, int) or num_runs < 2 or not isinstance(figures, dict):
        return f"{short_number(speed)} tokens/s"
    median = short_number(figures["output_throughput"])
    return f"{median} tokens/s, median of {num_runs} runs; {short_number(speed)} in this one"


def _tells_usage(trial: FinishedTrial) -> bool:
    """A load of a server may be without: llama.cpp says how many tokens it holds, not of how many."""
    return trial.number("kv_usage_max") is not None


def _peak_pct(trial: FinishedTrial) -> float:
    return 100 * (trial.number("kv_usage_max") or 0)


def _scale_blocks(axes: Axes, peak_pct: float) -> None:
    """The whole pool, or where little of it was used only that part, with room for the legend above."""
    if peak_pct >= 25:
        axes.set_ylim(0, 122)
        axes.set_yticks(range(0, 101, 20))
    else:
        axes.set_ylim(0, 1.35 * max(peak_pct, 0.01))


def _longest_queue(trial: FinishedTrial) -> float:
    assert trial.series is not None, "only trials with a series are chosen"
    queues = [name for name in _QUEUES if name in trial.series]
    return float(trial.series[queues].max().max()) if queues else 0.0


def _sequences(axes: Axes, trial: FinishedTrial) -> None:
    series = trial.series
    assert series is not None, "only trials with a series are chosen"
    for name in [name for name in _QUEUES if name in series]:
        label, colour, dash = _QUEUES[name]
        axes.step(series["seconds"], series[name], dash, where="post", color=colour, linewidth=1.6, label=label)


def _finding(shown: list[tuple[str, FinishedTrial]]) -> str:
    if not any(_tells_usage(trial) for _, trial in shown):
        return "How full the KV pool was is not told by this server"
    peaks = [f"{short_number(round(_peak_pct(trial), 1))} %" for _, trial in shown]
    if len(shown) == 1:
        return f"The KV pool peaks at {peaks[0]}"
    return f"The KV pool peaks at {peaks[0]} in the best trial, {peaks[1]} in the worst"
