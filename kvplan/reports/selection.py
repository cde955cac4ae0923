"""Which trials a picture shows: slices with all else fixed, the best and the worst trial, medians over repetitions.

The frames are ``Run.frame`` or parts of it, one row per trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pandas as pd

from kvplan.runs.reader import Run, Trial

SETTING_COLUMNS: Final = (
    "gpu_memory_utilization",
    "max_num_seqs",
    "block_size",
    "max_model_len",
    "max_num_batched_tokens",
    "kv_cache_dtype",
    "tensor_parallel_size",
    "device_memory_bytes",
    "request_rate",
    "max_concurrency",
    "workload",
)
# What a report names when it names a trial's settings: the axes of a sweep.
AXIS_COLUMNS: Final = SETTING_COLUMNS[:5]


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """Trials that differ only in some axes; ``fixed`` holds the other settings, without those that no row names."""

    trials: pd.DataFrame
    fixed: Mapping[str, object]


def widest_slice(trials: pd.DataFrame, axes: tuple[str, ...]) -> Slice:
    """Of all groups that agree in every setting but ``axes``, the one with the most points; ties: the most trials,
    then the larger utilization and context."""
    if trials.empty:
        return Slice(trials, {})
    others = [name for name in SETTING_COLUMNS if name not in axes]

    def size(group: pd.DataFrame) -> tuple[float, ...]:
        memory = group.iloc[0][["gpu_memory_utilization", "max_model_len"]].fillna(0)
        return (len(group.drop_duplicates(list(axes))), len(group), *memory)

    widest = max((group for _, group in trials.groupby(others, dropna=False, sort=False)), key=size)
    fixed = widest.iloc[0][others]
    return Slice(widest, fixed[fixed.notna() & (fixed != "")].to_dict())


def spreads(trials: pd.DataFrame, column: str, by: str) -> pd.DataFrame:
    """``column`` over the repetitions at each value of ``by``: columns median, min, max, count; index ascending.
    Rows without either figure are left out."""
    return trials.dropna(subset=[column]).groupby(by)[column].agg(["median", "min", "max", "count"])


def best_trial(run: Run) -> Trial | None:
    """The trial the summary recommends for throughput; without one the fastest, those that never waited first."""
    for entry in sorted(run.entries("best"), key=lambda entry: entry.get("goal") != "output_throughput"):
        trial = run.trial(str(entry.get("trial_id")))
        if trial is not None and trial.trial_id in set(run.measured["trial_id"]):
            return trial
    measured = run.measured
    undisturbed = measured[measured["status"] == "ok"]
    candidates = measured if undisturbed.empty else undisturbed
    return None if candidates.empty else run.trials[candidates["output_throughput"].idxmax()]


def slowest_trial(run: Run) -> Trial | None:
    """The measured trial with the lowest output throughput."""
    return None if run.measured.empty else run.trials[run.measured["output_throughput"].idxmin()]


def most_preempted_trial(run: Run) -> Trial | None:
    """The measured trial with the most preemptions, None where there was none at all."""
    preempted = run.measured[run.measured["num_preemptions"] > 0]
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
