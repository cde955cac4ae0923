"""A run directory as a report reads it: trials.jsonl first, manifest and summary where they exist.

A report can be made from whatever a sweep left behind, even one that was killed: a torn line is skipped and noted, and
a missing manifest or summary only costs what it alone would have said. The trials come twice: one by one as
``FinishedTrial``, and as a DataFrame for everything that groups, compares or joins them.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Final, TypeGuard, cast, get_args, get_type_hints

import pandas as pd

from kvplan.errors import KvplanError
from kvplan.files import parse_json
from kvplan.runs.answers.summary import Summary
from kvplan.runs.columns import Row
from kvplan.runs.directory import MANIFEST, SUMMARY, TRIALS, Manifest
from kvplan.runs.rows import as_written_now
from kvplan.runs.shape import bounded_numbers, without_misfits
from kvplan.runs.statuses import MEASURED_STATUSES

# What a JSON object on disk holds, whoever wrote it.
Document = Mapping[str, object]

_COLUMN_TYPES: Final[Mapping[str, frozenset[type]]] = {
    name: frozenset(get_args(hint) or (hint,)) - {NoneType} for name, hint in get_type_hints(Row).items()
}
# Columns that only hold whole numbers: to be written without a decimal point, although figures are floats in a frame.
WHOLE_COLUMNS: Final = frozenset(name for name, types in _COLUMN_TYPES.items() if types == {int})
_MOST_LINE_NUMBERS: Final = 10
_ODD_NUMBER: Final = re.compile(r"\d{19}|[eE]\+?\d{3}|Infinity|NaN")


@dataclass(frozen=True, slots=True)
class ReportColumn:
    """A column of the rows: name, unit ('' for none), the group it is shown in, description."""

    name: str
    unit: str = ""
    group: str = "other"
    description: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class FinishedTrial:
    """One finished trial: its row as stored, and its course over time.

    series: one row per point, columns as in ``kvplan.runs.directory.Series``; None for a trial that never ran.
    """

    row: Row
    series: pd.DataFrame | None = None

    @property
    def trial_id(self) -> str:
        """The hash of settings and run number, '' in a row without one."""
        return self.text("trial_id")

    @property
    def status(self) -> str:
        """How the trial ended; 'unknown' in a row without a status."""
        return self.text("status") or "unknown"

    def value(self, column: str) -> object:
        """The cell as stored, None where it is missing."""
        return cast(Document, self.row).get(column)

    def number(self, column: str) -> float | None:
        """The finite number in ``column``; None for anything else, a boolean included."""
        value = self.value(column)
        return value if _is_figure(value) else None

    def text(self, column: str) -> str:
        """The cell as text, '' where it is empty."""
        value = self.value(column)
        return "" if value is None else str(value)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Everything that a report is made of.

    frame: one row per trial, its index the position in ``trials``. Figures are float64 with NaN for a missing one,
    yes-or-no columns are nullable booleans, and all else is text with '' for a missing one. notes: sentences about
    what could not be read.
    """

    directory: Path
    trials: tuple[FinishedTrial, ...]
    frame: pd.DataFrame
    columns: tuple[ReportColumn, ...]
    manifest: Document
    summary: Document
    notes: tuple[str, ...]

    def entries(self, key: str) -> list[Document]:
        """The objects in a list of the summary; [] where there is no such list."""
        return objects_in(self.summary.get(key))

    @property
    def excluded(self) -> Mapping[str, str]:
        """trial_id -> reason, of the outliers that a rerun replaces; the summary lists them."""
        return {
            str(entry.get("trial_id")): str(entry.get("sentence") or entry.get("reason"))
            for entry in self.entries("excluded")
        }

    @property
    def is_counted(self) -> bool:
        """Whether blocks and bytes were counted and nothing was computed, so that no row has a speed."""
        return self.first("load_format") == "none"

    @property
    def served(self) -> pd.DataFrame:
        """The rows of ``frame`` with every request served, without the excluded ones."""
        frame = self.frame
        return frame[frame["status"].isin(MEASURED_STATUSES) & ~frame["trial_id"].isin(list(self.excluded))]

    @property
    def measured(self) -> pd.DataFrame:
        """Rows of ``served`` that have a throughput."""
        served = self.served
        return served[served["output_throughput"].notna()]

    @property
    def comparable(self) -> pd.DataFrame:
        """Rows of ``measured`` that did the whole work; all of them where every trial's prompts were shortened."""
        measured = self.measured
        whole = measured[~(measured["num_clipped_prompts"] > 0)]
        return measured if whole.empty else whole

    def trial(self, trial_id: str) -> FinishedTrial | None:
        """The trial with that id."""
        return next((trial for trial in self.trials if trial.trial_id == trial_id), None)

    def first(self, column: str) -> str:
        """The first filled cell of ``column``: for what is the same in every row, such as the model."""
        return next((text for trial in self.trials if (text := trial.text(column))), "")


def objects_in(value: object) -> list[Document]:
    """The JSON objects in a JSON list; [] for anything else."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


_MOST_NAMED: Final = 3


def load_run(directory: Path) -> Run:
    """Read a run directory. KvplanError if it is missing or holds no readable trial."""
    if not directory.is_dir():
        said = f"'{directory}' is a file." if directory.exists() else f"There is no directory '{directory}'."
        raise KvplanError(said, hint="give the directory that `kvplan sweep` wrote (its --out)")
    notes: list[str] = []
    trials = _read_trials(directory, notes)
    if not trials and not any((directory / name).exists() for name in (TRIALS, MANIFEST)):
        within = shlex.join(str(each.parent) for each in sorted(directory.glob(f"*/{TRIALS}"))[:_MOST_NAMED])
        raise KvplanError(
            f"'{directory}' is no run directory.",
            hint=f"name those in it, such as {within}" if within else f"a run directory has a {TRIALS}",
        )
    if not trials:
        raise KvplanError(
            f"'{directory}' holds no finished trial.",
            hint=f"`{shlex.join(['kvplan', 'sweep', '--resume', str(directory)])}` runs what is missing",
        )
    manifest = _read_object(directory / MANIFEST, Manifest, notes)
    summary = _read_object(directory / SUMMARY, Summary, notes)
    return Run(directory, trials, trial_frame(trials), _columns(manifest, trials), manifest, summary, tuple(notes))


def trial_frame(trials: Sequence[FinishedTrial]) -> pd.DataFrame:
    """One row per trial and every column of ``Row``, with the types that ``Run`` names."""
    columns = {name: _cells(trials, name, types) for name, types in _COLUMN_TYPES.items()}
    columns["status"] = pd.Series([trial.status for trial in trials], dtype=object)
    return pd.DataFrame(columns)


def _cells(trials: Sequence[FinishedTrial], name: str, types: frozenset[type]) -> pd.Series:
    if types <= {int, float}:
        return pd.Series([trial.number(name) for trial in trials], dtype="float64")
    if types == {bool}:
        values = [trial.value(name) for trial in trials]
        return pd.Series([value if isinstance(value, bool) else None for value in values], dtype="boolean")
    return pd.Series([trial.text(name) for trial in trials], dtype=object)


def _read_text(path: Path) -> str:
    """The file as UTF-8; '' for a missing one. Bytes that are not UTF-8 (a torn line) are replaced."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise KvplanError(f"'{path}' cannot be read: {error.strerror}.", hint="check its permissions") from error


def _read_trials(directory: Path, notes: list[str]) -> tuple[FinishedTrial, ...]:
    """The trials by their numbers; of one that was written twice, the later record counts."""
    trials: dict[tuple[object, ...], FinishedTrial] = {}
    unreadable: list[int] = []
    odd_cells: Counter[str] = Counter()
    for number, line in enumerate(_read_text(directory / TRIALS).split("\n"), start=1):
        if not line.strip():
            continue
        trial, misfits = _parse_trial(line)
        if trial is None:
            unreadable.append(number)
            continue
        odd_cells.update(misfits)
        key = (trial.trial_id or number, trial.value("run_number"))
        trials.pop(key, None)
        trials[key] = trial
    if unreadable:
        notes.append(_unreadable_note(unreadable))
    if odd_cells:
        notes.append(_misfit_note(TRIALS, list(odd_cells)))
    # several workers end their trials in another order; a row without a number stays behind the others
    return tuple(sorted(trials.values(), key=lambda trial: trial.number("trial_number") or math.inf))


def _unreadable_note(numbers: Sequence[int]) -> str:
    word, were = ("Line", "was") if len(numbers) == 1 else ("Lines", "were")
    listed = ", ".join(map(str, numbers[:_MOST_LINE_NUMBERS]))
    more = ", ..." if len(numbers) > _MOST_LINE_NUMBERS else ""
    return f"{word} {listed}{more} of {TRIALS} could not be read and {were} skipped."


def _misfit_note(name: str, misfits: Sequence[str]) -> str:
    listed = ", ".join(misfits[:_MOST_LINE_NUMBERS])
    more = ", ..." if len(misfits) > _MOST_LINE_NUMBERS else ""
    return f"What {name} says of {listed}{more} is not what a sweep writes and was left out."


def _parse_trial(line: str) -> tuple[FinishedTrial | None, list[str]]:
    """The trial, and the names of its columns that hold what they cannot: those are empty."""
    try:
        record = _parse(line)
    except ValueError:
        return None, []
    if not isinstance(record, dict) or not isinstance(record.get("row"), dict):
        return None, []
    stored = as_written_now(record["row"])
    _, misfits = without_misfits({name: cell for name, cell in stored.items() if cell is not None}, Row)
    row = stored | cast(Row, dict.fromkeys(misfits))
    return FinishedTrial(row, _series(record.get("series"))), misfits


def _parse(text: str) -> Any:
    """Parse like ``parse_json``, but numbers that no sweep writes, not finite or beyond any table, are missing."""
    document = parse_json(text)
    return bounded_numbers(document) if _ODD_NUMBER.search(text) else document


def _series(series: object) -> pd.DataFrame | None:
    """The lists of finite numbers as long as ``seconds``; None where that is missing, empty or not such a list."""
    if not isinstance(series, dict) or not isinstance(series.get("seconds"), list) or not series["seconds"]:
        return None
    length = len(series["seconds"])
    kept = {name: values for name, values in series.items() if _is_numeric_list(values, length)}
    return pd.DataFrame(kept, dtype="float64") if "seconds" in kept else None


def _is_numeric_list(values: object, length: int) -> bool:
    return isinstance(values, list) and len(values) == length and all(map(_is_figure, values))


def _is_figure(value: object) -> TypeGuard[int | float]:
    """Whether it is a finite number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -sys.float_info.max <= value <= sys.float_info.max


def _read_object(path: Path, kind: Any, notes: list[str]) -> Document:
    """The object in a file, without the entries that are not those of ``kind``, a TypedDict."""
    text = _read_text(path)
    if not text:
        notes.append(f"{path.name} is missing, so the report lacks what only that file says.")
        return {}
    try:
        value = _parse(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        notes.append(f"{path.name} is not readable JSON, so the report lacks what only that file says.")
        return {}
    kept, misfits = without_misfits(value, kind)
    if misfits:
        notes.append(_misfit_note(path.name, misfits))
    return kept


def _columns(manifest: Document, trials: Sequence[FinishedTrial]) -> tuple[ReportColumn, ...]:
    """The manifest's list, followed by every column that only the rows have."""
    listed = [column for entry in objects_in(manifest.get("columns")) if (column := _column(entry)).name]
    known = {column.name for column in listed}
    extra = dict.fromkeys(name for trial in trials for name in trial.row if name not in known)
    return (*listed, *(ReportColumn(name) for name in extra))


def _column(entry: Document) -> ReportColumn:
    name, unit, group, description = (str(entry.get(key) or "") for key in ("name", "unit", "group", "description"))
    return ReportColumn(name, unit, group or "other", description)
