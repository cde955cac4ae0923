"""Numbers and settings as a report writes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from kvplan.reports.selection import AXIS_COLUMNS, SETTING_COLUMNS, Curves, varied_columns
from kvplan.runs.storage.reader import FinishedTrial, Run
from kvplan.settings import KNOBS
from kvplan.units import format_bytes, plural


def of_both(number: int, further: str = "") -> str:
    """``median of 12 settings that both served``, with ``further`` behind it, or that there is one such setting."""
    return (
        f"median of {number} settings that both served{further}" if number > 1 else "the one setting that both served"
    )


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


def settings_phrase(trial: FinishedTrial, columns: Iterable[str] = AXIS_COLUMNS[:4]) -> str:
    """``gpu_memory_utilization 0.9, max_num_seqs 16, ...``, as far as the trial has them."""
    return ", ".join(f"{name} {setting(trial.value(name))}" for name in columns if trial.value(name) is not None)


def fixed_phrase(run: Run, fixed: Mapping[str, object]) -> str:
    """The settings that a slice holds fixed: the usual axes, and whatever the run varied."""
    shown = {*AXIS_COLUMNS, *varied_columns(run)}
    return ", ".join(f"{name} {setting(fixed[name])}" for name in SETTING_COLUMNS if name in shown and name in fixed)


def curves_phrase(run: Run, found: Curves) -> str:
    """What lines hold fixed, whether they pass through the best trial, and how many are not drawn."""
    through = "through the best trial" if found.has_best else "near the best trial, which differs in other settings"
    others = f"; {plural(found.num_left_out, 'line')} farther from it not drawn" if found.num_left_out else ""
    fixed = fixed_phrase(run, found.fixed)
    if not fixed:  # a server whose settings are not known
        return others.removeprefix("; ")
    return f"{fixed} ({through}{others})"


def load_phrase(run: Run) -> str:
    """Storage types and workload: ``float32 · 6 requests, 64..128 in, ...``."""
    numbers = {trial.text("num_prompts") for trial in run.trials if trial.text("num_prompts")}
    prompts, workload = next(iter(numbers)) if len(numbers) == 1 else "", _workload(run)
    requests = workload if "request" in workload or not prompts else f"{_requests(prompts)}, {workload}"
    dtypes = dict.fromkeys(trial.text("dtype") for trial in run.trials if trial.text("dtype"))
    return " · ".join(filter(None, (", ".join(dtypes), requests)))


def _requests(number: str) -> str:
    return f"{number} request" if number == "1" else f"{number} requests"


def _workload(run: Run) -> str:
    """The workload in one line; of a search over loads, what all trials share, and the range of the loads."""
    texts = list(dict.fromkeys(trial.text("workload") for trial in run.trials if trial.text("workload")))
    if len(texts) < 2:
        return texts[0] if texts else ""
    others = [text.split(", ") for text in texts[1:]]
    parts = [part for part in texts[0].split(", ") if all(part in other for other in others)]
    for name in ("max_concurrency", "request_rate"):
        loads = [load for trial in run.trials if (load := trial.number(name)) is not None]
        if len(set(loads)) > 1:
            parts.append(f"{asked_name(run, name)} {setting(min(loads))} to {setting(max(loads))}")
    return ", ".join(parts)


def asked_name(run: Run, name: str) -> str:
    """A setting as the run was asked for it: where all requests in flight were those of users, their number."""
    if name != "max_concurrency":
        return name
    users = [(trial.number("users"), trial.number(name)) for trial in run.trials]
    return "users" if any(count for count, _ in users) and all(count == flight for count, flight in users) else name


def run_phrase(run: Run) -> str:
    """Model, device, storage type and workload: what every picture of a run must say."""
    device = run.first("device_name") or run.first("device") or run.first("url")
    device += ", nothing computed" if run.is_counted else ""
    return " · ".join(filter(None, (run.first("model_id"), run.first("engine"), device, load_phrase(run))))


def exclusion_phrase(run: Run) -> str:
    """What the figures leave out, '' where they leave out nothing."""
    number = len(run.excluded)
    return f"without {plural(number, 'run')} replaced by a rerun (busy machine or outlier)" if number else ""


def shortened_phrase(run: Run) -> str:
    """What a comparison of speeds leaves out because it did less work, '' where that is nothing."""
    number = len(run.measured) - len(run.comparable)
    return f"without {plural(number, 'trial')} whose prompts were shortened to fit max_model_len" if number else ""


def axis_title(name: str) -> str:
    """A setting with its unit: ``max_model_len (tokens)``."""
    unit = KNOBS[name].unit if name in KNOBS else ""
    return f"{name} ({unit})" if unit else name
