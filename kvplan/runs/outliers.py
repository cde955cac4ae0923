"""Runs whose timings should not be trusted: the machine was busy meanwhile, or they lie far from their siblings.

Nothing is dropped silently. An outlier is run again, both rows stay, the later one names the earlier (``rerun_of``)
and the reason; and what a median leaves out is listed in the summary with its reason.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from kvplan.runs.statuses import MEASURED_STATUSES
from kvplan.runs.trials import SETTING_NAMES

Row = Mapping[str, Any]
Key = tuple[Any, ...]

# Share of the machine's processor time that others may take while a trial is timed.
NOISY_CPU_PCT: Final = 25.0
# Share of its highest clock below which a GPU was held back (heat, power), and timings are not its own.
SLOW_CLOCK_PCT: Final = 70.0
# A run is far from its siblings when it is this share of their median away from it, and thrice as far as they are
# apart from each other: both, so that neither tiny differences nor an honestly noisy setting count.
FAR_SHARE: Final = 0.10
FAR_RANGES: Final = 3.0
FEWEST_SIBLINGS: Final = 2
LOAD_NAMES: Final = ("request_rate", "max_concurrency")


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A run that medians leave out, because a rerun of it was better."""

    trial_id: str
    run_number: int
    reason: str
    sentence: str


def setting_key(row: Row) -> Key:
    """Settings and load: rows with equal keys are runs of one thing."""
    return tuple(row.get(name) for name in (*SETTING_NAMES, *LOAD_NAMES))


def runs_by_setting(rows: Iterable[Row]) -> dict[Key, list[Row]]:
    """The rows of each setting under each load, in their order."""
    groups: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        groups[setting_key(row)].append(row)
    return dict(groups)


def is_measured(row: Row) -> bool:
    return row["status"] in MEASURED_STATUSES


def noise_reason(row: Row) -> str | None:
    """Why the machine was not this trial's own, or None. Only for a trial that was served."""
    if not is_measured(row):
        return None
    others, clock = row.get("other_cpu_pct"), row.get("gpu_clock_pct")
    if row.get("device") != "cuda" and others is not None and others > NOISY_CPU_PCT:
        return f"others took {others:.0f} % of the processor time"
    if clock is not None and clock < SLOW_CLOCK_PCT:
        return f"the GPU's clock was at {clock:.0f} % of its highest"
    return None


def spread_reason(row: Row, siblings: Sequence[Row]) -> str | None:
    """Why this run lies too far from the other runs of its setting, or None (also where there are too few)."""
    rates = [sibling["output_throughput"] for sibling in siblings if is_measured(sibling)]
    if not is_measured(row) or len(rates) < FEWEST_SIBLINGS:
        return None
    middle, width = median(rates), max(rates) - min(rates)
    distance = abs(row["output_throughput"] - middle)
    if distance <= max(FAR_SHARE * middle, FAR_RANGES * width):
        return None
    far = math.copysign(100 * distance / middle, row["output_throughput"] - middle)
    return f"{far:+.0f} % from the median of the other runs"


def outlier_reason(row: Row, runs: Sequence[Row]) -> str | None:
    """The machine's noise, or distance from the siblings among ``runs`` (which may hold the row itself)."""
    return noise_reason(row) or spread_reason(row, [run for run in runs if run is not row])


def excluded_runs(rows: Iterable[Row]) -> list[Exclusion]:
    """Outliers that were run again and still are outliers beside all runs of their setting, when the rerun is none."""
    found = []
    for runs in runs_by_setting(rows).values():
        replacements = {run["rerun_of"]: run for run in runs if run.get("rerun_of")}
        for run in runs:
            rerun = replacements.get(run["run_number"])
            reason = outlier_reason(run, runs)
            if rerun is None or reason is None or not is_measured(rerun) or outlier_reason(rerun, runs) is not None:
                continue
            sentence = (
                f"run {run['run_number']} of {_settings_text(run)}: {reason}; run {rerun['run_number']} stands in"
            )
            found.append(Exclusion(str(run["trial_id"]), run["run_number"], reason, sentence))
    return found


def without_excluded(rows: Sequence[Row]) -> list[Row]:
    """The rows that medians are made of."""
    excluded = {exclusion.trial_id for exclusion in excluded_runs(rows)}
    return [row for row in rows if row["trial_id"] not in excluded]


def _settings_text(row: Row) -> str:
    return (
        f"utilization {row['gpu_memory_utilization']:g}, {row['max_num_seqs']} sequences, block {row['block_size']}, "
        f"context {row['max_model_len']:,}"
    )
