"""A run directory as it lies on disk, read for reporting: trials.jsonl first, manifest and summary where they exist.

A report must come out of whatever a sweep left behind, also a killed one: a torn line is left out and said so, a
missing manifest or summary costs what only they know, and nothing else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.errors import KvplanError
from kvplan.runs.directory import MANIFEST, SUMMARY, TRIALS
from kvplan.runs.statuses import MEASURED_STATUSES


@dataclass(frozen=True, slots=True)
class ReportColumn:
    """One column of the rows: name, unit ('' where it has none), the group it is shown in, what it says."""

    name: str
    unit: str = ""
    group: str = "other"
    description: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial: its row (column name -> value, None where a figure does not exist) and its course over time."""

    row: Mapping[str, Any]
    series: Mapping[str, Sequence[float]] | None = None

    @property
    def trial_id(self) -> str:
        """The settings' and the run's id, '' in a row without one."""
        return self.text("trial_id")

    @property
    def status(self) -> str:
        """How the trial ended; 'unknown' in a row without a status."""
        return self.text("status") or "unknown"

    @property
    def measured(self) -> bool:
        """True where requests were served and a throughput stands in the row."""
        return self.status in MEASURED_STATUSES and self.number("output_throughput") is not None

    def number(self, column: str) -> float | None:
        """The finite number in ``column``; None for anything else, a boolean included."""
        value = self.row.get(column)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return value

    def text(self, column: str) -> str:
        """The cell as text, '' where it is empty."""
        value = self.row.get(column)
        return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that a report is made of. ``notes`` are sentences about what could not be read."""

    directory: Path
    trials: tuple[Trial, ...]
    columns: tuple[ReportColumn, ...]
    manifest: Mapping[str, Any]
    summary: Mapping[str, Any]
    notes: tuple[str, ...]

    @property
    def excluded(self) -> Mapping[str, str]:
        """trial_id -> reason of the outliers that a rerun stands in for; the summary lists them."""
        listed = self.summary.get("excluded")
        entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        return {str(entry.get("trial_id")): str(entry.get("sentence") or entry.get("reason")) for entry in entries}

    @property
    def measured(self) -> tuple[Trial, ...]:
        """The trials that were served, in the order in which they ended, without the excluded ones."""
        excluded = self.excluded
        return tuple(trial for trial in self.trials if trial.measured and trial.trial_id not in excluded)

    def trial(self, trial_id: str) -> Trial | None:
        """The trial of that id; of several runs of it the first."""
        return next((trial for trial in self.trials if trial.trial_id == trial_id), None)

    def first(self, column: str) -> str:
        """The first filled cell of ``column``: for what is the same in every row, as the model."""
        return next((trial.text(column) for trial in self.trials if trial.text(column)), "")


def load_run(directory: Path) -> Run:
    """Read a run directory. KvplanError when it is missing or holds no readable trial."""
    if not directory.is_dir():
        raise KvplanError(
            f"There is no directory '{directory}'.", hint="give the directory that `kvplan sweep` wrote (its --out)"
        )
    notes: list[str] = []
    trials = _read_trials(directory, notes)
    if not trials:
        raise KvplanError(
            f"'{directory}' holds no finished trial.",
            hint=f"a run directory has a {TRIALS}; `kvplan sweep --resume {directory}` runs what is missing",
        )
    manifest = _read_object(directory / MANIFEST, notes)
    summary = _read_object(directory / SUMMARY, notes)
    return Run(directory, trials, _columns(manifest, trials), manifest, summary, tuple(notes))


def _read_text(path: Path) -> str:
    """UTF-8 text; '' for a file that is not there. Bytes that are no UTF-8 (a torn line) are replaced."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise KvplanError(f"'{path}' cannot be read: {error.strerror}.", hint="check its permissions") from error


def _read_trials(directory: Path, notes: list[str]) -> tuple[Trial, ...]:
    trials: dict[tuple[object, ...], Trial] = {}
    unreadable: list[int] = []
    for number, line in enumerate(_read_text(directory / TRIALS).split("\n"), start=1):
        if not line.strip():
            continue
        trial = _parse_trial(line)
        if trial is None:
            unreadable.append(number)
            continue
        key = (trial.trial_id or number, trial.row.get("run_number"))
        trials.pop(key, None)
        trials[key] = trial
    if unreadable:
        word, were = ("Line", "was") if len(unreadable) == 1 else ("Lines", "were")
        numbers = ", ".join(map(str, unreadable[:10])) + (", ..." if len(unreadable) > 10 else "")
        notes.append(f"{word} {numbers} of {TRIALS} could not be read and {were} left out.")
    return tuple(trials.values())


def _parse_trial(line: str) -> Trial | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("row"), dict):
        return None
    return Trial(record["row"], _checked_series(record.get("series")))


def _checked_series(series: object) -> Mapping[str, Sequence[float]] | None:
    """The series when it is equally long lists of finite numbers, None otherwise."""
    if not isinstance(series, dict) or not isinstance(series.get("seconds"), list) or not series["seconds"]:
        return None
    length = len(series["seconds"])
    kept = {name: values for name, values in series.items() if _is_numeric_list(values, length)}
    return kept if "seconds" in kept else None


def _is_numeric_list(values: object, length: int) -> bool:
    return (
        isinstance(values, list)
        and len(values) == length
        and all(isinstance(value, int | float) and math.isfinite(value) for value in values)
    )


def _read_object(path: Path, notes: list[str]) -> Mapping[str, Any]:
    text = _read_text(path)
    if not text:
        notes.append(f"{path.name} is missing: what only it says is left out.")
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        notes.append(f"{path.name} is not readable JSON: what only it says is left out.")
        return {}
    return value


def _columns(manifest: Mapping[str, Any], trials: Sequence[Trial]) -> tuple[ReportColumn, ...]:
    """The manifest's list, and behind it every column that only the rows know."""
    listed = manifest.get("columns")
    columns = [_column(entry) for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    columns = [column for column in columns if column.name]
    known = {column.name for column in columns}
    extra = dict.fromkeys(name for trial in trials for name in trial.row if name not in known)
    return (*columns, *(ReportColumn(name) for name in extra))


def _column(entry: Mapping[str, Any]) -> ReportColumn:
    name, unit, group, description = (str(entry.get(key) or "") for key in ("name", "unit", "group", "description"))
    return ReportColumn(name, unit, group or "other", description)
