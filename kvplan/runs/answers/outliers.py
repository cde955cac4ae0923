"""Runs whose timings should not be trusted: the machine was busy meanwhile, or they lie far from their siblings.

Nothing is dropped silently. An outlier is run again, both rows stay, the later one names the earlier (``rerun_of``)
and the reason; and what a median leaves out is listed in the summary with its reason.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from kvplan.runs.columns import Row
from kvplan.runs.rows import Cell, cell, has_speed, is_measured, throughput_of
from kvplan.runs.setting_text import row_text, shown_in
from kvplan.runs.trials import LOAD_NAMES, SETTING_NAMES

Key = tuple[Cell, ...]

# Share of the machine's CPU time that other processes may use while a trial is timed.
NOISY_CPU_PCT: Final = 25.0
# Share of its maximum clock below which a GPU was throttled (heat, power), so that timings are not its own.
SLOW_CLOCK_PCT: Final = 70.0
# A run is far from its siblings if it is this share of their median away from it, and three times as far as they are
# apart from each other: both, so that neither tiny differences nor a truly noisy setting count.
FAR_SHARE: Final = 0.10
FAR_RANGES: Final = 3.0
FEWEST_SIBLINGS: Final = 2


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A run that medians leave out, because its rerun was better."""

    trial_id: str
    run_number: int
    reason: str
    sentence: str


def setting_key(row: Row) -> Key:
    """Settings and load: rows with equal keys are runs of the same thing."""
    return tuple(cell(row, name) for name in (*SETTING_NAMES, *LOAD_NAMES))


def runs_by_setting(rows: Iterable[Row]) -> dict[Key, list[Row]]:
    """The rows of each setting under each load, in their order."""
    groups: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        groups[setting_key(row)].append(row)
    return dict(groups)


def noise_reason(row: Row) -> str | None:
    """Why this trial did not have the machine to itself, or None. Only for a trial that was served."""
    if not is_measured(row):
        return None
    others, clock = row.get("other_cpu_pct"), row.get("gpu_clock_pct")
    if row.get("device") != "cuda" and others is not None and others > NOISY_CPU_PCT:
        return f"other processes used {others:.0f} % of the CPU"
    if clock is not None and clock < SLOW_CLOCK_PCT:
        return f"the GPU ran at {clock:.0f} % of its maximum clock"
    return None


def spread_reason(row: Row, siblings: Sequence[Row]) -> str | None:
    """Why this run is too far from the other runs of its setting, or None (also if there are too few of them).

    Rows that only count are all alike.
    """
    rates = [throughput_of(sibling) for sibling in siblings if has_speed(sibling)]
    if not has_speed(row) or len(rates) < FEWEST_SIBLINGS:
        return None
    middle, width = median(rates), max(rates) - min(rates)
    distance = throughput_of(row) - middle
    if abs(distance) <= max(FAR_SHARE * middle, FAR_RANGES * width):
        return None
    far = math.copysign(100 * abs(distance) / middle, distance)
    return f"{far:+.0f} % from the median of the other runs"


def outlier_reason(row: Row, runs: Sequence[Row]) -> str | None:
    """A busy machine, or distance from the siblings among ``runs`` (which may contain the row itself)."""
    return noise_reason(row) or spread_reason(row, [run for run in runs if run is not row])


def excluded_runs(rows: Iterable[Row]) -> list[Exclusion]:
    """Outliers that were run again and still are outliers among all runs of their setting, if the rerun is not one."""
    found = []
    listed = list(rows)
    shown = shown_in(listed)
    for runs in runs_by_setting(listed).values():
        replacements = {run["rerun_of"]: run for run in runs if run.get("rerun_of")}
        for run in runs:
            rerun = replacements.get(run["run_number"])
            reason = outlier_reason(run, runs)
            if rerun is None or reason is None or not is_measured(rerun) or outlier_reason(rerun, runs) is not None:
                continue
            found.append(
                Exclusion(str(run["trial_id"]), run["run_number"], reason, _sentence(run, rerun, reason, shown))
            )
    return found


def _sentence(run: Row, rerun: Row, reason: str, shown: Sequence[str]) -> str:
    settings = row_text(run, shown)
    return f"run {run['run_number']} of {settings}: {reason}; run {rerun['run_number']} replaces it"


def without_excluded(rows: Sequence[Row]) -> list[Row]:
    """The rows that medians are made of."""
    excluded = {exclusion.trial_id for exclusion in excluded_runs(rows)}
    return [row for row in rows if row["trial_id"] not in excluded]
