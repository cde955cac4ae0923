"""What the page's tables show: the main columns of every trial, then every column by group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kvplan.reports.selection import listed_trials, with_varied
from kvplan.reports.wording import named_cell, plural
from kvplan.runs.storage.reader import FinishedTrial, ReportColumn, Run

# What a reader looks up first; the other columns follow by group.
MAIN_COLUMNS: Final = (
    "trial_number",
    "status",
    "gpu_memory_utilization",
    "max_num_seqs",
    "block_size",
    "max_model_len",
    "output_throughput",
    "pred_output_throughput",
    "throughput_over_pred",
    "median_ttft_ms",
    "pred_median_ttft_ms",
    "median_tpot_ms",
    "pred_median_tpot_ms",
    "goodput_pct",
    "slo_pass",
    "bound_by",
    "kv_usage_max",
    "kv_waste_pct",
    "num_preemptions",
    "pred_max_concurrency",
    "meas_max_concurrency",
    "num_blocks_predicted",
    "num_blocks_total",
    "error",
)
_LEAD_COLUMNS: Final = MAIN_COLUMNS[:6]
# Beside the leading ones: what fits on paper.
_MOST_COLUMNS: Final = 10
_LONG_TEXT: Final = 40


@dataclass(frozen=True, slots=True)
class Heading:
    """The head of a column; text columns are aligned left."""

    name: str
    unit: str = ""
    description: str = ""
    is_text: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """``value`` is what the column is sorted by, ``hint`` the cell's tooltip."""

    text: str
    value: object
    css: str | None = None
    hint: str | None = None
    is_status: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table that can be sorted; ``label`` names it to a screen reader."""

    label: str
    headings: Sequence[Heading]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class SharedCell:
    """A column with the same value in every trial."""

    column: ReportColumn
    text: str


@dataclass(frozen=True, slots=True)
class ColumnGroup:
    """The columns of one group: those with one value are listed once, the others are in tables that fit on paper."""

    name: str
    size: str
    shared: Sequence[SharedCell]
    tables: Sequence[Table]


def main_table(run: Run) -> Table:
    """The columns a reader looks up first, without those that no row fills."""
    trials = listed_trials(run)
    columns = [column for column in _named(run, with_varied(MAIN_COLUMNS, run)) if _is_filled(trials, column)]
    return _table("trials", trials, columns)


def column_groups(run: Run) -> list[ColumnGroup]:
    """Every column of every row, by the column's group in order of appearance."""
    groups: dict[str, list[ReportColumn]] = {}
    for column in run.columns:
        groups.setdefault(column.group, []).append(column)
    return [_group(run, name, columns) for name, columns in groups.items()]


def _group(run: Run, name: str, columns: Sequence[ReportColumn]) -> ColumnGroup:
    shared = [column for column in columns if _is_constant(listed_trials(run), column)]
    varying = [column for column in columns if column not in shared]
    chunks = [varying[start : start + _MOST_COLUMNS] for start in range(0, len(varying), _MOST_COLUMNS)]
    return ColumnGroup(
        name,
        plural(len(columns), "column"),
        [SharedCell(column, _shared_text(listed_trials(run)[0], column)) for column in shared],
        [_chunk(run, name, chunk) for chunk in chunks],
    )


def _chunk(run: Run, group: str, columns: Sequence[ReportColumn]) -> Table:
    lead = [column for column in _named(run, with_varied(_LEAD_COLUMNS, run)) if column not in columns]
    return _table(f"columns of the group {group}", listed_trials(run), [*lead, *columns])


def _shared_text(trial: FinishedTrial, column: ReportColumn) -> str:
    text = named_cell(column.name, trial.value(column.name), column.unit)
    unit = "" if column.unit in ("", "bytes") else f" {column.unit}"
    return f"{text}{unit}" if text else "– (empty)"


def _is_constant(trials: Sequence[FinishedTrial], column: ReportColumn) -> bool:
    first = trials[0].value(column.name)
    return all(trial.value(column.name) == first for trial in trials)


def _is_filled(trials: Iterable[FinishedTrial], column: ReportColumn) -> bool:
    return any(trial.value(column.name) not in (None, "") for trial in trials)


def _named(run: Run, names: Sequence[str]) -> list[ReportColumn]:
    by_name = {column.name: column for column in run.columns}
    return [by_name[name] for name in names if name in by_name]


def _table(label: str, trials: Sequence[FinishedTrial], columns: Sequence[ReportColumn]) -> Table:
    headings = [_heading(trials, column) for column in columns]
    pairs = list(zip(columns, headings, strict=True))
    return Table(label, headings, [[_cell(trial, *pair) for pair in pairs] for trial in trials])


def _heading(trials: Sequence[FinishedTrial], column: ReportColumn) -> Heading:
    is_text = any(isinstance(trial.value(column.name), str) for trial in trials)
    # A cell of bytes has its own unit: MiB here, GiB there.
    return Heading(column.name, "" if column.unit == "bytes" else column.unit, column.description, is_text)


def _cell(trial: FinishedTrial, column: ReportColumn, heading: Heading) -> Cell:
    value = trial.value(column.name)
    text = named_cell(column.name, value, column.unit)
    css = ("text long" if len(text) > _LONG_TEXT else "text") if heading.is_text else None
    return Cell(text, "" if value is None else value, css, is_status=column.name == "status")
