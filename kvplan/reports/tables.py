"""The rows as CSV, JSON and Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast

import pandas as pd

from kvplan.foreign_text import as_markdown, inert_cell
from kvplan.reports.comparison import Comparison, verdicts
from kvplan.reports.findings import (
    clipped_sentence,
    counted_sentence,
    kernels_sentence,
    kv_waste,
    noise_sentence,
    not_listed_sentence,
    prediction_sentences,
    recommendation_heading,
    recommendations,
    sentences,
    shared_sentence,
    status_counts,
    transformers_sentence,
)
from kvplan.reports.fleet import FLEET_HEADS, fleet_cells
from kvplan.reports.searches import searches
from kvplan.reports.selection import listed_trials, with_varied
from kvplan.reports.side_by_side import SideBySide, side_sentences
from kvplan.reports.wording import cell, named_cell, plural, run_phrase, short_number
from kvplan.runs.columns import table_columns
from kvplan.runs.storage.reader import Run

REPORT_SCHEMA: Final = "kvplan.report/1"
_MARKDOWN_COLUMNS: Final = (
    "trial_number",
    "status",
    "gpu_memory_utilization",
    "max_num_seqs",
    "block_size",
    "max_model_len",
    "output_throughput",
    "median_ttft_ms",
    "median_tpot_ms",
    "kv_usage_max",
    "kv_waste_pct",
    "num_preemptions",
    "num_blocks_predicted",
    "num_blocks_total",
)


def csv_text(run: Run) -> str:
    """Return every row and every column that is not always empty: what results.csv holds."""
    rows = [cast(Mapping[str, object], trial.row) for trial in run.trials]
    known = table_columns(rows)
    filled = {name for row in rows for name, value in row.items() if value is not None}
    names = [*known, *(column.name for column in run.columns if column.name in filled and column.name not in known)]
    # As objects, because a whole number stays one only if no missing figure turns its column into floats.
    return frame_csv(pd.DataFrame([trial.row for trial in run.trials], columns=names, dtype=object))


def frame_csv(frame: pd.DataFrame) -> str:
    """A frame as CSV without its index, and without formulas."""
    inert = pd.DataFrame(
        [list(map(inert_cell, line)) for line in frame.itertuples(index=False, name=None)],
        columns=list(map(inert_cell, frame.columns)),
        dtype=object,
    )
    return inert.to_csv(index=False, lineterminator="\n")


def json_document(run: Run) -> Mapping[str, object]:
    """Rows, summary and manifest in one document of schema ``kvplan.report/1``."""
    return {
        "schema": REPORT_SCHEMA,
        "summary": run.summary,
        "manifest": run.manifest,
        "rows": [trial.row for trial in run.trials],
        "notes": list(run.notes),
    }


def json_text(document: object) -> str:
    """Indented JSON that ends with a line feed; text as it is, not as escapes."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def markdown_text(run: Run) -> str:
    """Recommendation, boundaries, predictions and the main columns, for an issue or a merge request."""
    notes = [
        *run.notes,
        kernels_sentence(run),
        counted_sentence(run),
        shared_sentence(run),
        transformers_sentence(run),
        noise_sentence(run),
        clipped_sentence(run),
        *(f"Excluded from medians: {text}." for text in run.excluded.values()),
    ]
    counts = ", ".join(f"{status} {count}" for status, count in status_counts(run).items())
    parts = [
        f"# {as_markdown(run.first('model_id'))}",
        as_markdown(run_phrase(run)),
        *(f"> {as_markdown(note)}" for note in notes if note),
        *_markdown_recommendations(run),
        f"{plural(len(run.trials), 'trial')}: {counts}.",
    ]
    for heading, lines in (
        ("Highest load within the SLO", [search.sentence for search in searches(run)]),
        ("Boundaries", sentences(run, "boundaries")),
        ("Not monotonic", sentences(run, "violations")),
        ("Predicted vs. measured", prediction_sentences(run)),
        ("KV memory", _waste_lines(run)),
    ):
        parts += [f"## {heading}", _bullets(lines)] if lines else []
    parts += ["## Trials", _trial_table(run), not_listed_sentence(run)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {as_markdown(line)}" for line in lines)


def _markdown_recommendations(run: Run) -> list[str]:
    found = recommendations(run)
    if not found:
        return ["## No setting could be served"]
    best = found[0]
    settings = ", ".join(f"{name} {value}" for name, value in best.settings.items())
    figures = ", ".join(f"{name} {value}" for name, value in best.figures.items())
    lines = [
        f"## {recommendation_heading(run)}",
        f"{best.title}: {as_markdown(best.reason)}",
        f"{as_markdown(settings)}: {as_markdown(figures)}.",
    ]
    if best.beside:
        lines.append(f"Measured beside predicted: {as_markdown('; '.join(best.beside))}.")
    return [*lines, _code(list(best.commands.values()))] if best.commands else lines


def _waste_lines(run: Run) -> list[str]:
    found = kv_waste(run)
    if found is None:
        return []
    paged, contiguous = short_number(found.paged_pct), short_number(found.contiguous_pct)
    return [
        f"{paged} % of the allocated KV memory held tokens; it would be {contiguous} % if every sequence reserved "
        "max_model_len."
    ]


def _trial_table(run: Run) -> str:
    by_name = {column.name: column for column in run.columns}
    names = with_varied(_MARKDOWN_COLUMNS, run)
    columns = [by_name[name] for name in names if name in by_name]
    head = [f"{column.name} ({column.unit})" if column.unit else column.name for column in columns]
    rows = [[named_cell(column.name, trial.value(column.name), column.unit) for column in columns]
            for trial in listed_trials(run)]  # fmt: skip
    return markdown_table(head, rows)


def comparison_markdown(comparison: Comparison) -> str:
    """Verdicts, differing circumstances and the settings that both tried."""
    rows = [[named_cell(name, value) for name, value in row.items()] for row in comparison.records()]
    parts = [f"# {as_markdown(' vs. '.join(reversed(comparison.names)))}", _bullets(verdicts(comparison))]
    if comparison.differences:
        differing = [[entry.name, entry.first, entry.second] for entry in comparison.differences]
        parts += ["## What differs", markdown_table(["", "first", "second"], differing)]
    return (
        "\n\n".join([*parts, "## Settings that both tried", markdown_table(list(comparison.table().columns), rows)])
        + "\n"
    )


def side_by_side_markdown(compared: SideBySide) -> str:
    """Sentences, differing circumstances and the settings that several tried, a line for each run of a setting."""
    labels = [side.label for side in compared.sides]
    parts = [f"# {as_markdown(' · '.join(labels))}", _bullets(side_sentences(compared))]
    if compared.circumstances:
        differing = [[entry.name, *entry.values] for entry in compared.circumstances]
        parts += ["## What differs", markdown_table(["", *labels], differing)]
    if compared.devices:
        head = [f"{name} ({unit})" if unit else name for name, unit in FLEET_HEADS]
        parts += [
            "## Devices, each at its fastest setting",
            markdown_table(head, list(map(fleet_cells, compared.devices))),
        ]
    shown = ("status", *compared.shown_figures)
    rows = [
        [
            *(named_cell(name, record[name]) for name in compared.settings),
            label,
            *(cell(record[label][name]) for name in shown),
        ]
        for record in compared.records()
        for label in labels
        if record[label]["status"]
    ]
    head = [*compared.settings, compared.label_head, *shown]
    return "\n\n".join([*parts, "## Settings that several tried", markdown_table(head, rows)]) + "\n"


def side_by_side_frame(compared: SideBySide) -> pd.DataFrame:
    """One row per setting that several tried and run, with the run's label as ``engine`` or ``device``."""
    rows = [
        {name: record[name] for name in compared.settings} | {compared.label_head: side.label} | record[side.label]
        for record in compared.records()
        for side in compared.sides
        if record[side.label]["status"]
    ]
    return pd.DataFrame(rows, dtype=object)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; pipes and line breaks in cells cannot break it."""
    lines = ["| " + " | ".join(map(as_markdown, line)) + " |" for line in (head, *rows)]
    return "\n".join([lines[0], "| " + " | ".join("---" for _ in head) + " |", *lines[1:]])


def _code(lines: Sequence[str]) -> str:
    """Lines between fences, which none of them can end."""
    return "\n".join(["```", *(" ".join(line.replace("```", "` ` `").splitlines()) for line in lines), "```"])
