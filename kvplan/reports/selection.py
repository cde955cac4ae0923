"""Which trials a picture shows: slices near the best trial with all else fixed, the best and the worst trial, medians.

The frames are ``Run.frame`` or parts of it, one row per trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from kvplan.runs.storage.reader import FinishedTrial, Run
from kvplan.runs.trials import NAMED_SETTINGS, NEEDED_SETTINGS

SETTING_COLUMNS: Final = (*NAMED_SETTINGS, "device_memory_bytes", "request_rate", "max_concurrency")
# What a report names when it names a trial's settings: the axes of a sweep.
AXIS_COLUMNS: Final = NEEDED_SETTINGS


# What throughput and latency are drawn over: the first of these that was varied.
CURVE_COLUMNS: Final = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_concurrency",
    "block_size",
    "max_model_len",
    "gpu_memory_utilization",
)
# Settings that only decide how much fits.
ROOM_COLUMNS: Final = ("max_model_len", "gpu_memory_utilization")
# Lines that do not pass through the best trial must come this close to its throughput to be drawn in their place.
_NEAR_THE_BEST: Final = 0.9


# Share of the CPU used by other processes from which timings are called noisy.
_NOISY_PCT: Final = 15.0


def is_busy(run: Run) -> bool:
    """Return whether other processes used much of the CPU in the median trial, so that its timings are noisy."""
    shares = run.measured["other_cpu_pct"].dropna()
    return not shares.empty and bool(shares.median() >= _NOISY_PCT)


@dataclass(frozen=True, slots=True, eq=False)
class TrialSlice:
    """Trials that differ only in some axes; ``fixed`` holds the other settings, without those that no row names."""

    trials: pd.DataFrame
    fixed: Mapping[str, object]


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Lines over the column ``x``, the nearest to the best trial first; they differ in the settings ``names``.

    fixed: the settings that all lines share. has_best: whether the best trial is on one. num_left_out: lines not drawn.
    """

    x: str
    lines: tuple[TrialSlice, ...]
    names: tuple[str, ...]
    fixed: Mapping[str, object]
    has_best: bool
    num_left_out: int


def slices(trials: pd.DataFrame, axes: Sequence[str], best: FinishedTrial | None) -> list[TrialSlice]:
    """All groups that agree in every setting but ``axes``: those that differ from the best trial in the fewest settings
    first; ties: the most points, then the most trials, then the larger utilization and context."""
    if trials.empty:
        return []
    others = [name for name in SETTING_COLUMNS if name not in axes]

    def order(group: pd.DataFrame) -> tuple[float, ...]:
        first = group.iloc[0]
        distance = 0 if best is None else sum(_differs(first[name], best.value(name)) for name in others)
        memory = -first[["gpu_memory_utilization", "max_model_len"]].fillna(0)
        return (distance, -len(group.drop_duplicates(list(axes))), -len(group), *memory)

    groups = sorted((group for _, group in trials.groupby(others, dropna=False, sort=False)), key=order)
    return [TrialSlice(group, _named(group.iloc[0][others])) for group in groups]


def _differs(cell: object, value: object) -> bool:
    """``cell`` of a frame, where NaN or '' is a missing ``value``."""
    return (None if pd.isna(cell) or cell == "" else cell) != value


def _named(settings: pd.Series) -> Mapping[str, object]:
    return settings[settings.notna() & (settings != "")].to_dict()


def curves(run: Run, most_lines: int) -> Curves | None:
    """At most ``most_lines`` lines of comparable trials through the best one, or near it; None where nothing varied.

    They run along max_num_seqs, or if that was not varied, along the first of CURVE_COLUMNS that was.
    """
    best = best_trial(run)
    if best is None:
        return None
    for x in CURVE_COLUMNS:
        lines = [part for part in slices(run.comparable, (x,), best) if part.trials[x].nunique() > 1]
        if lines and (_holds(lines[0], best) or _comes_near(lines[0], best)):
            return _curves(x, lines, best, most_lines)
    return None


def _holds(part: TrialSlice, trial: FinishedTrial) -> bool:
    return trial.trial_id in set(part.trials["trial_id"])


def _comes_near(part: TrialSlice, best: FinishedTrial) -> bool:
    return bool(part.trials["output_throughput"].max() >= _NEAR_THE_BEST * (best.number("output_throughput") or 0.0))


def _curves(x: str, lines: Sequence[TrialSlice], best: FinishedTrial, most_lines: int) -> Curves:
    kept = lines[:most_lines]
    shared = {
        name: value for name, value in kept[0].fixed.items() if all(part.fixed.get(name) == value for part in kept)
    }
    names = tuple(name for name in SETTING_COLUMNS if name != x and any(name in part.fixed for part in kept)
                  and name not in shared)  # fmt: skip
    return Curves(x, tuple(kept), names, shared, _holds(kept[0], best), len(lines) - len(kept))


def shown_columns(run: Run) -> tuple[str, ...]:
    """What a report names when it names a trial's settings: the usual ones, and whatever else the run varied."""
    shown = {*AXIS_COLUMNS[:4], *varied_columns(run)}
    return tuple(name for name in SETTING_COLUMNS if name in shown)


def listed_trials(run: Run) -> tuple[FinishedTrial, ...]:
    """The trials that the tables list: those that a search did not run say nothing, and may be hundreds."""
    return tuple(trial for trial in run.trials if trial.status != "skipped_oom_dominated") or run.trials


def with_varied(columns: Sequence[str], run: Run) -> tuple[str, ...]:
    """The columns of a table that names a trial's settings, with whatever else the run varied beside them."""
    more = [name for name in varied_columns(run) if name not in columns]
    place = columns.index(AXIS_COLUMNS[3]) + 1
    return (*columns[:place], *more, *columns[place:])


def varied_columns(run: Run) -> tuple[str, ...]:
    """The settings that differ between trials: what a report must show of each."""
    return tuple(name for name in SETTING_COLUMNS if run.frame[name].replace("", None).dropna().nunique() > 1)


def spreads(trials: pd.DataFrame, column: str, by: str) -> pd.DataFrame:
    """``column`` over the repetitions at each value of ``by``: columns median, min, max, count; index ascending.
    Rows without either figure are left out."""
    return trials.dropna(subset=[column]).groupby(by)[column].agg(["median", "min", "max", "count"])


def best_trial(run: Run) -> FinishedTrial | None:
    """The trial the summary recommends for throughput; without one the fastest, those that never waited first.

    Of trials that only count: the one that ran the most sequences at once.
    """
    figure = "max_running" if run.is_counted else "output_throughput"
    served, comparable = (run.served, run.served) if run.is_counted else (run.measured, run.comparable)
    for entry in sorted(run.entries("best"), key=lambda entry: entry.get("goal") != "output_throughput"):
        trial = run.trial(str(entry.get("trial_id")))
        if trial is not None and trial.trial_id in set(served["trial_id"]):
            return trial
    undisturbed = comparable[comparable["status"] == "ok"]
    candidates = comparable if undisturbed.empty else undisturbed
    return None if candidates[figure].dropna().empty else run.trials[candidates[figure].idxmax()]


def fullest_queue_trial(run: Run) -> FinishedTrial | None:
    """The served trial with the most sequences waiting, None where none ever waited."""
    waiting = run.served[run.served["max_waiting"] > 0]
    return None if waiting.empty else run.trials[waiting["max_waiting"].idxmax()]


def slowest_trial(run: Run) -> FinishedTrial | None:
    """The comparable trial with the lowest output throughput."""
    return None if run.comparable.empty else run.trials[run.comparable["output_throughput"].idxmin()]


def most_preempted_trial(run: Run) -> FinishedTrial | None:
    """The measured trial with the most preemptions, None where there was none at all."""
    preempted = run.served[run.served["num_preemptions"] > 0]
    return None if preempted.empty else run.trials[preempted["num_preemptions"].idxmax()]


def user_points(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per setting that has a median TPOT: the settings, one_user (tokens/s that one user sees while the answer
    is generated, 1 / median TPOT) and all_users (output throughput), medians over its runs, and slo_pass."""
    speeds = trials[trials["median_tpot_ms"] > 0].assign(one_user=lambda frame: 1000 / frame["median_tpot_ms"])
    groups = speeds.groupby(list(SETTING_COLUMNS), dropna=False, sort=False)
    return groups.agg(
        one_user=("one_user", "median"), all_users=("output_throughput", "median"), slo_pass=("slo_pass", "first")
    ).reset_index()


def pareto_front(points: pd.DataFrame) -> pd.DataFrame:
    """The ``user_points`` that no other beats in both speeds, from slow to fast users."""
    fastest_first = points.sort_values(["one_user", "all_users"], ascending=False)
    best_so_far = fastest_first["all_users"].cummax().shift(fill_value=-1.0)
    return fastest_first[fastest_first["all_users"] > best_so_far][::-1]


def knee(points: pd.Series, share: float = 0.95) -> float | None:
    """The smallest index that reaches ``share`` of the highest value; None for an empty series."""
    return None if points.empty else float(points[points >= share * points.max()].index.min())
