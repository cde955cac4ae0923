"""Numbers and settings as a report writes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from kvplan.reports.selection import AXIS_COLUMNS, SETTING_COLUMNS
from kvplan.runs.reader import Run, Trial
from kvplan.units import format_bytes


def short_number(value: float | None) -> str:
    """Three digits for small numbers, whole numbers with thousands separators for large ones: 0.185, 12.3, 1,024."""
    if value is None or value != value:
        return "–"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def cell(value: object, unit: str = "") -> str:
    """One table cell: bytes in binary units, floats short, '' for a missing value."""
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if value in (float("inf"), float("-inf")):
            return str(value)
        return format_bytes(value) if unit == "bytes" else short_number(value)
    if isinstance(value, dict | list):
        return ", ".join(map(str, value))
    return str(value)


def setting(value: object) -> str:
    """A setting in full: 0.3355 and 0.336 may be on two sides of a boundary."""
    is_fraction = isinstance(value, float) and math.isfinite(value) and not value.is_integer()
    return f"{value:.10g}" if is_fraction else cell(value)


def named_cell(name: str, value: object, unit: str = "") -> str:
    """The cell of a named column: settings in full, figures short."""
    return setting(value) if name in SETTING_COLUMNS and unit != "bytes" else cell(value, unit)


def settings_phrase(trial: Trial, columns: Iterable[str] = AXIS_COLUMNS[:4]) -> str:
    """``gpu_memory_utilization 0.9, max_num_seqs 16, ...``, as far as the trial has them."""
    return ", ".join(f"{name} {setting(trial.value(name))}" for name in columns if trial.value(name) is not None)


def fixed_phrase(fixed: Mapping[str, object]) -> str:
    """The axes that a slice holds fixed."""
    return ", ".join(f"{name} {setting(fixed[name])}" for name in AXIS_COLUMNS if name in fixed)


def load_phrase(run: Run) -> str:
    """Storage type and workload: ``float32 · 6 requests, 64..128 in, ...``."""
    prompts, workload = run.first("num_prompts"), run.first("workload")
    requests = workload if "requests" in workload or not prompts else f"{prompts} requests, {workload}"
    return " · ".join(filter(None, (run.first("dtype"), requests)))


def run_phrase(run: Run) -> str:
    """Model, device, storage type and workload: what every picture of a run must say."""
    device = run.first("device_name") or run.first("device")
    return " · ".join(filter(None, (run.first("model_id"), device, load_phrase(run))))


def exclusion_phrase(run: Run) -> str:
    """What the figures leave out, '' where they leave out nothing."""
    number = len(run.excluded)
    return f"without {plural(number, 'run')} replaced by a rerun (busy machine or outlier)" if number else ""


def plural(number: int, noun: str) -> str:
    """``1 trial``, ``2 trials``, ``1,024 trials``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
