"""Which trials a picture shows: slices with all else fixed, the best and the worst trial, medians and spread."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

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


@dataclass(frozen=True, slots=True)
class Spread:
    """Repetitions of one figure: median, extremes and how many."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))


@dataclass(frozen=True, slots=True)
class Slice:
    """Trials that differ in the named axes only; ``fixed`` holds the values of all other settings."""

    trials: tuple[Trial, ...]
    fixed: Mapping[str, Any]


def widest_slice(trials: Iterable[Trial], axes: tuple[str, ...]) -> Slice:
    """Of all groups that agree in every setting but ``axes``, the one with the most points; ties: the most trials,
    then the larger utilization and context."""
    groups: dict[tuple[str, ...], list[Trial]] = defaultdict(list)
    others = [name for name in SETTING_COLUMNS if name not in axes]
    for trial in trials:
        groups[tuple(trial.text(name) for name in others)].append(trial)
    if not groups:
        return Slice((), {})

    def size(members: list[Trial]) -> tuple[float, ...]:
        points = {tuple(trial.text(name) for name in axes) for trial in members}
        first = members[0]
        memory = first.number("gpu_memory_utilization") or 0, first.number("max_model_len") or 0
        return (len(points), len(members), *memory)

    members = max(groups.values(), key=size)
    return Slice(tuple(members), {name: members[0].row.get(name) for name in others})


def spreads(trials: Iterable[Trial], column: str, by: str) -> dict[float, Spread]:
    """``column`` over the repetitions at each value of ``by``, ascending; rows without either are left out."""
    values: dict[float, list[float]] = defaultdict(list)
    for trial in trials:
        place, value = trial.number(by), trial.number(column)
        if place is not None and value is not None:
            values[place].append(value)
    return {place: Spread.of(values[place]) for place in sorted(values)}


def best_trial(run: Run) -> Trial | None:
    """The trial the summary recommends for throughput; without one the fastest, those that never waited first."""
    for entry in sorted(summary_best(run), key=lambda entry: entry.get("goal") != "output_throughput"):
        trial = run.trial(str(entry.get("trial_id")))
        if trial is not None and trial.measured:
            return trial
    clean = [trial for trial in run.measured if trial.status == "ok"]
    return max(clean or run.measured, key=_output_throughput, default=None)


def slowest_trial(run: Run) -> Trial | None:
    """The measured trial with the lowest output throughput."""
    return min(run.measured, key=_output_throughput, default=None)


def most_preempted_trial(run: Run) -> Trial | None:
    """The measured trial with the most preemptions, None where there was none at all."""
    trial = max(run.measured, key=_preemptions, default=None)
    return trial if trial is not None and _preemptions(trial) > 0 else None


def summary_best(run: Run) -> list[Mapping[str, Any]]:
    """The summary's recommendations in its order: the one within a service level first, where one was given."""
    listed = run.summary.get("best")
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


@dataclass(frozen=True, slots=True)
class UserPoint:
    """A setting between two wishes: tokens/s that one user sees while the answer is written, and tokens/s of all."""

    one_user: float
    all_users: float
    trial: Trial


def user_points(trials: Iterable[Trial]) -> list[UserPoint]:
    """One point per setting with a median TPOT, medians over its runs; one user's speed is 1 / median TPOT."""
    groups: dict[tuple[str, ...], list[Trial]] = defaultdict(list)
    for trial in trials:
        if trial.number("median_tpot_ms"):
            groups[tuple(trial.text(name) for name in SETTING_COLUMNS)].append(trial)
    return [
        UserPoint(
            statistics.median(1000 / (trial.number("median_tpot_ms") or 1.0) for trial in runs),
            statistics.median(map(_output_throughput, runs)),
            runs[0],
        )
        for runs in groups.values()
    ]


def pareto_front(points: Iterable[UserPoint]) -> list[UserPoint]:
    """Points that no other beats in both wishes, from slow to fast users."""
    front: list[UserPoint] = []
    for point in sorted(points, key=lambda point: (-point.one_user, -point.all_users)):
        if not front or point.all_users > front[-1].all_users:
            front.append(point)
    return front[::-1]


def knee(points: Mapping[float, float], share: float = 0.95) -> float | None:
    """The smallest place that reaches ``share`` of the highest value."""
    if not points:
        return None
    goal = share * max(points.values())
    return next(place for place in sorted(points) if points[place] >= goal)


def _output_throughput(trial: Trial) -> float:
    return trial.number("output_throughput") or 0.0


def _preemptions(trial: Trial) -> float:
    return trial.number("num_preemptions") or 0.0
