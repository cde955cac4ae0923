"""How full the KV pool was over time, and how many sequences ran and waited, in the best and the worst trial."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvplan.reports.looks import BLUE, ORANGE, SKY_BLUE, VERMILION
from kvplan.reports.plots.canvas import finish, say
from kvplan.reports.selection import best_trial, most_preempted_trial, slowest_trial
from kvplan.reports.wording import plural, settings_phrase, short_number
from kvplan.runs.reader import Run, Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Column of the series -> label, colour, dash.
_QUEUES: Final = {"num_running": ("running", BLUE, "-"), "num_waiting": ("waiting", VERMILION, "--")}


def draw(run: Run, figure: Figure) -> str:
    """Two columns (best, worst), two rows (share of blocks, sequences); the finding compares the pools' peaks."""
    shown = chosen_trials(run)
    if not shown:
        return say(figure, run, "No trial was served, so there is no occupancy to show.")
    grid = figure.subplots(2, len(shown), squeeze=False, sharex="col", sharey="row", height_ratios=[3, 2])
    for place, (name, trial) in enumerate(shown):
        _blocks(grid[0][place], trial, name)
        _sequences(grid[1][place], trial)
    for row in (0, 1):
        handles, labels = grid[row][0].get_legend_handles_labels()
        grid[row][-1].legend(handles, labels, loc="upper right", ncols=2, borderaxespad=0.1, columnspacing=1.2)
    _scale_blocks(grid[0][0], max(_peak_pct(trial) for _, trial in shown))
    grid[0][0].set_ylabel("share of the pool (%)")
    grid[1][0].set_ylabel("sequences")
    grid[1][0].set_ylim(0, 1.5 * max([1.0, *(_longest_queue(trial) for _, trial in shown)]))
    return finish(figure, run, _finding(shown))


def chosen_trials(run: Run) -> list[tuple[str, Trial]]:
    """(why it is shown, trial): the best, then the one with most preemptions, or the slowest where none preempted."""
    chosen: list[tuple[str, Trial]] = []
    best = best_trial(run)
    if best is not None and best.series is not None:
        goals = [entry.get("goal") for entry in run.entries("best") if entry.get("trial_id") == best.trial_id]
        is_slo = "slo" in goals and "output_throughput" not in goals
        chosen.append(("Best (fastest within the SLO)" if is_slo else "Best (highest throughput)", best))
    worst, why = most_preempted_trial(run), "Worst (most preemptions)"
    if worst is None or worst is best:
        worst, why = slowest_trial(run), "Worst (lowest throughput)"
    if worst is not None and worst.series is not None and worst is not best:
        chosen.append((why, worst))
    return chosen


def _blocks(axes: Axes, trial: Trial, name: str) -> None:
    series = trial.series
    assert series is not None, "only trials with a series are chosen"
    slots = (trial.number("num_blocks_total") or 0) * (trial.number("block_size") or 0)
    if "kv_usage" in series:
        axes.fill_between(series["seconds"], 100 * series["kv_usage"], color=SKY_BLUE, alpha=0.55, linewidth=0,
                          label="blocks in use")  # fmt: skip
    if "used_tokens" in series and slots:
        axes.fill_between(series["seconds"], 100 * series["used_tokens"] / slots, color=BLUE, alpha=0.85, linewidth=0,
                          label="slots that hold a token")  # fmt: skip
    rate = short_number(trial.number("output_throughput"))
    axes.set_title(f"{name}: {rate} tokens/s ({trial.status})\n{_two_lines(trial)}", fontsize=8.5)


def _two_lines(trial: Trial) -> str:
    memory = settings_phrase(trial, ("gpu_memory_utilization", "max_model_len"))
    batch = settings_phrase(trial, ("max_num_seqs", "block_size"))
    return f"{memory}\n{batch}"


def _peak_pct(trial: Trial) -> float:
    return 100 * (trial.number("kv_usage_max") or 0)


def _scale_blocks(axes: Axes, peak_pct: float) -> None:
    """The whole pool, or where little of it was used only that part, with room for the legend above."""
    if peak_pct >= 25:
        axes.set_ylim(0, 122)
        axes.set_yticks(range(0, 101, 20))
    else:
        axes.set_ylim(0, 1.35 * max(peak_pct, 0.01))


def _longest_queue(trial: Trial) -> float:
    assert trial.series is not None, "only trials with a series are chosen"
    queues = [name for name in _QUEUES if name in trial.series]
    return float(trial.series[queues].max().max()) if queues else 0.0


def _sequences(axes: Axes, trial: Trial) -> None:
    series = trial.series
    assert series is not None, "only trials with a series are chosen"
    for name in [name for name in _QUEUES if name in series]:
        label, colour, dash = _QUEUES[name]
        axes.step(series["seconds"], series[name], dash, where="post", color=colour, linewidth=1.6, label=label)
    preemptions = trial.number("num_preemptions") or 0
    if preemptions:
        text = plural(int(preemptions), "preemption")
        axes.text(0.02, 0.96, text, transform=axes.transAxes, va="top", fontsize=9,
                  bbox={"facecolor": ORANGE, "alpha": 0.35, "edgecolor": "none", "pad": 2})  # fmt: skip
    axes.set_xlim(left=0)
    axes.set_xlabel("time since the first arrival (s)")


def _finding(shown: list[tuple[str, Trial]]) -> str:
    peaks = [f"{short_number(round(_peak_pct(trial), 1))} %" for _, trial in shown]
    if len(shown) == 1:
        return f"The KV pool peaks at {peaks[0]}"
    return f"The KV pool peaks at {peaks[0]} in the best trial, {peaks[1]} in the worst"
