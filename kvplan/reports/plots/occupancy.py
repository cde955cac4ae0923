"""How full the KV pool was over time, and who ran and waited meanwhile, in the best and the worst trial."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.reports.plots.canvas import finish, say
from kvplan.reports.selection import best_trial, most_preempted_trial, slowest_trial, summary_best
from kvplan.reports.statuses import BLUE, ORANGE, SKY_BLUE, VERMILION
from kvplan.reports.wording import plural, settings_phrase, short_number
from kvplan.runs.reader import Run, Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(run: Run, figure: Figure) -> str:
    """Two columns (best, worst), two rows (share of blocks, sequences); the finding compares the pools' peaks."""
    shown = chosen_trials(run)
    if not shown:
        return say(figure, run, "No trial was served: there is no occupancy to show.")
    grid: Any = figure.subplots(2, len(shown), squeeze=False, sharex="col", sharey="row", height_ratios=[3, 2])
    for place, (name, trial) in enumerate(shown):
        _blocks(grid[0][place], trial, name)
        _sequences(grid[1][place], trial)
    grid[0][0].set_ylabel("share of the pool's blocks (%)")
    grid[1][0].set_ylabel("sequences")
    for row in (0, 1):
        handles, labels = grid[row][0].get_legend_handles_labels()
        grid[row][-1].legend(handles, labels, loc="upper right", ncols=2, borderaxespad=0.1, columnspacing=1.2)
    top = max([1, *(max(values) for _, trial in shown for values in _queues(trial).values())])
    grid[1][0].set_ylim(0, top * 1.5)
    grid[0][0].set_yticks(range(0, 101, 20))
    return finish(figure, run, _finding(shown))


def chosen_trials(run: Run) -> list[tuple[str, Trial]]:
    """(why it is shown, trial): the best, then the one with most preemptions, or the slowest where none preempted."""
    chosen: list[tuple[str, Trial]] = []
    best = best_trial(run)
    if best is not None and best.series:
        goals = [entry.get("goal") for entry in summary_best(run) if entry.get("trial_id") == best.trial_id]
        is_level = "slo" in goals and "output_throughput" not in goals
        chosen.append(("Best: fastest within the service level" if is_level else "Best: highest throughput", best))
    worst, why = most_preempted_trial(run), "Worst: most preemptions"
    if worst is None or worst is best:
        worst, why = slowest_trial(run), "Worst: lowest throughput"
    if worst is not None and worst.series and worst is not best:
        chosen.append((why, worst))
    return chosen


def _blocks(axes: Axes, trial: Trial, name: str) -> None:
    series = trial.series or {}
    seconds = series["seconds"]
    used = [100 * value for value in series.get("kv_usage", [])]
    slots = (trial.number("num_blocks_total") or 0) * (trial.number("block_size") or 0)
    stored = [100 * value / slots for value in series.get("used_tokens", [])] if slots else []
    if used:
        axes.fill_between(seconds, used, color=SKY_BLUE, alpha=0.55, linewidth=0, label="blocks in use")
    if stored:
        axes.fill_between(seconds, stored, color=BLUE, alpha=0.85, linewidth=0, label="slots that hold a token")
    axes.set_ylim(0, 122)
    axes.set_title(f"{name} ({trial.status})\n{_two_lines(trial)}", fontsize=8.5)


def _two_lines(trial: Trial) -> str:
    memory = settings_phrase(trial, ("gpu_memory_utilization", "max_model_len"))
    batch = settings_phrase(trial, ("max_num_seqs", "block_size"))
    return f"{memory}\n{batch}"


def _queues(trial: Trial) -> dict[str, Any]:
    series = trial.series or {}
    return {name: series[name] for name in ("num_running", "num_waiting") if name in series}


def _sequences(axes: Axes, trial: Trial) -> None:
    seconds = (trial.series or {})["seconds"]
    looks = {"num_running": ("running", BLUE, "-"), "num_waiting": ("waiting", VERMILION, "--")}
    for name, values in _queues(trial).items():
        label, colour, dash = looks[name]
        axes.step(seconds, values, dash, where="post", color=colour, linewidth=1.6, label=label)
    preemptions = trial.number("num_preemptions") or 0
    if preemptions:
        text = plural(int(preemptions), "preemption")
        axes.text(0.02, 0.96, text, transform=axes.transAxes, va="top", fontsize=9,
                  bbox={"facecolor": ORANGE, "alpha": 0.35, "edgecolor": "none", "pad": 2})  # fmt: skip
    axes.set_xlim(left=0)
    axes.set_xlabel("time since the first arrival (s)")


def _finding(shown: list[tuple[str, Trial]]) -> str:
    peaks = [100 * (trial.number("kv_usage_max") or 0) for _, trial in shown]
    if len(shown) == 1:
        return f"The pool was at most {peaks[0]:.0f} % full"
    best, worst = shown[0][1], shown[1][1]
    rates = [short_number(trial.number("output_throughput")) for trial in (best, worst)]
    return (
        f"Pool at most {peaks[0]:.0f} % full in the best trial ({rates[0]} tokens/s), "
        f"{peaks[1]:.0f} % in the worst ({rates[1]} tokens/s)"
    )
