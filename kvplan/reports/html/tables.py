"""Tables of the page: what matters of every trial, then every column by group; each scrolls in its own box."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from kvplan.reports.html.markup import Html, breakable, join, tag
from kvplan.reports.statuses import look_of
from kvplan.reports.wording import named_cell
from kvplan.runs.reader import ReportColumn, Run, Trial

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
    "median_ttft_ms",
    "median_tpot_ms",
    "goodput_pct",
    "slo_pass",
    "kv_usage_max",
    "frag_pct",
    "num_preemptions",
    "num_blocks_predicted",
    "num_blocks_total",
    "error",
)
_LEAD_COLUMNS: Final = MAIN_COLUMNS[:6]
_MOST_COLUMNS: Final = 10
_LONG_TEXT: Final = 40


def scrolled(table: Html, label: str) -> Html:
    """A box that scrolls sideways on its own, also from the keyboard."""
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)


def status_badge(status: str) -> Html:
    """The status in its colour; the name is always readable, the meaning a hint."""
    look = look_of(status)
    ink = "#fff" if _is_dark(look.colour) else "#000"
    return tag(
        "span", status, class_="badge", style=f"background:{look.colour};color:{ink}", title=look.meaning or None
    )


def _is_dark(colour: str) -> bool:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 115


def main_table(run: Run) -> Html:
    """The columns a reader looks up first, those left out that no row fills."""
    columns = [column for column in _named(run, MAIN_COLUMNS) if _is_filled(run.trials, column)]
    return scrolled(_table(run.trials, columns), "trials")


def group_tables(run: Run) -> Html:
    """Every column of every row, by the column's group. What all rows share is said once instead of in every row."""
    ordered = sorted(run.columns, key=lambda column: _group_rank(run, column.group))
    parts = [_group(run, name, list(columns)) for name, columns in groupby(ordered, key=lambda column: column.group)]
    return join(*parts)


def _group_rank(run: Run, name: str) -> int:
    return next(place for place, column in enumerate(run.columns) if column.group == name)


def _group(run: Run, name: str, columns: list[ReportColumn]) -> Html:
    varying = [column for column in columns if not _is_constant(run.trials, column)]
    shared = [column for column in columns if _is_constant(run.trials, column)]
    body = [_shared(run, shared)] if shared else []
    body += [_chunk(run, chunk, name) for chunk in _chunks(varying)]
    return tag("details", tag("summary", f"{name} ({len(columns)} columns)"), *body, class_="columns")


def _chunk(run: Run, columns: Sequence[ReportColumn], name: str) -> Html:
    names = {column.name for column in columns}
    lead = [column for column in _named(run, _LEAD_COLUMNS) if column.name not in names]
    return tag("div", scrolled(_table(run.trials, [*lead, *columns]), f"columns of the group {name}"), class_="chunk")


def _chunks(columns: Sequence[ReportColumn]) -> Iterator[Sequence[ReportColumn]]:
    """At most ten columns beside the leading ones: what fits on paper."""
    for start in range(0, len(columns), _MOST_COLUMNS):
        yield columns[start : start + _MOST_COLUMNS]


def _shared(run: Run, columns: Sequence[ReportColumn]) -> Html:
    entries: list[Html] = []
    for column in columns:
        value = named_cell(column.name, run.trials[0].row.get(column.name), column.unit)
        entries += [tag("dt", breakable(column.name), title=column.description or None)]
        entries += [tag("dd", f"{value}{_unit_suffix(column)}" if value else "– (empty)")]
    return join(tag("p", "The same in every trial:", class_="faint"), tag("dl", *entries))


def _unit_suffix(column: ReportColumn) -> str:
    return f" {column.unit}" if column.unit not in ("", "bytes") else ""


def _is_constant(trials: Sequence[Trial], column: ReportColumn) -> bool:
    first = trials[0].row.get(column.name)
    return all(trial.row.get(column.name) == first for trial in trials)


def _is_filled(trials: Iterable[Trial], column: ReportColumn) -> bool:
    return any(trial.row.get(column.name) not in (None, "") for trial in trials)


def _named(run: Run, names: Sequence[str]) -> list[ReportColumn]:
    by_name = {column.name: column for column in run.columns}
    return [by_name[name] for name in names if name in by_name]


def _table(trials: Sequence[Trial], columns: Sequence[ReportColumn]) -> Html:
    texts = {column.name for column in columns if _is_text(trials, column)}
    head = tag("tr", *(_head(column, column.name in texts) for column in columns))
    rows = (tag("tr", *(_cell(trial, column, column.name in texts) for column in columns)) for trial in trials)
    return tag("table", tag("thead", head), tag("tbody", *rows))


def _is_text(trials: Sequence[Trial], column: ReportColumn) -> bool:
    return any(isinstance(trial.row.get(column.name), str) for trial in trials)


def _head(column: ReportColumn, is_text: bool) -> Html:
    unit = tag("span", column.unit, class_="unit") if column.unit and column.unit != "bytes" else Html("")
    return tag("th", breakable(column.name), unit, scope="col", title=column.description or None, data_sortable=True,
               class_="text" if is_text else None)  # fmt: skip


def _cell(trial: Trial, column: ReportColumn, is_text: bool) -> Html:
    value = trial.row.get(column.name)
    text = named_cell(column.name, value, column.unit)
    shown = status_badge(text) if column.name == "status" and text else text
    kind = "text long" if is_text and len(text) > _LONG_TEXT else "text" if is_text else None
    return tag("td", shown, class_=kind, data_value="" if value is None else value)
