"""The rows as CSV, JSON and Markdown."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any, Final

from kvplan.reports.findings import (
    kv_waste,
    noise_sentence,
    prediction_sentences,
    recommendations,
    sentences,
    status_counts,
)
from kvplan.reports.plots.slo import searches
from kvplan.reports.wording import named_cell, run_phrase, short_number
from kvplan.runs.reader import Run

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
    "frag_pct",
    "num_preemptions",
    "num_blocks_predicted",
    "num_blocks_total",
)


def csv_text(run: Run) -> str:
    """Every row and column, None as an empty cell: what results.csv holds."""
    file = io.StringIO()
    writer = csv.DictWriter(file, [column.name for column in run.columns], lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(trial.row for trial in run.trials)
    return file.getvalue()


def json_document(run: Run) -> dict[str, Any]:
    """Rows, summary and manifest in one document of schema ``kvplan.report/1``."""
    return {
        "schema": REPORT_SCHEMA,
        "summary": run.summary,
        "manifest": run.manifest,
        "rows": [dict(trial.row) for trial in run.trials],
        "notes": list(run.notes),
    }


def json_text(document: object) -> str:
    """Indented JSON with its last line ended; text as it is, not as escapes."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def markdown_text(run: Run) -> str:
    """Recommendation, boundaries, predictions and the main columns, for an issue or a merge request."""
    parts = [
        f"# {_words(run.first('model_id'))}",
        _words(run_phrase(run)),
        *(f"> {_words(note)}" for note in run.notes),
    ]
    parts += [f"> {noise}"] if (noise := noise_sentence(run)) else []
    parts += [f"> Left out of every median: {_words(sentence)}." for sentence in run.excluded.values()]
    parts += _markdown_recommendations(run)
    counts = ", ".join(f"{status} {count}" for status, count in status_counts(run).items())
    parts.append(f"{len(run.trials)} trials: {counts}.")
    for heading, lines in (
        ("Within the service level", [str(search.get("sentence")) for search in searches(run)]),
        ("Boundaries", sentences(run, "boundaries")),
        ("Not monotone", sentences(run, "violations")),
        ("Predicted against measured", prediction_sentences(run)),
        ("KV memory", _waste_lines(run)),
    ):
        if lines:
            parts += [f"## {heading}", "\n".join(f"- {_words(line)}" for line in lines)]
    parts += ["## Trials", _trial_table(run)]
    return "\n\n".join(parts) + "\n"


def _markdown_recommendations(run: Run) -> list[str]:
    found = recommendations(run)
    if not found:
        return ["## No setting could be served"]
    best = found[0]
    settings = ", ".join(f"{name} {value}" for name, value in best.settings.items())
    figures = ", ".join(f"{name} {value}" for name, value in best.figures.items())
    commands = "\n".join(best.commands.values())
    lines = ["## Recommendation", f"{best.title}: {_words(best.reason)}", f"{_words(settings)}: {_words(figures)}."]
    return [*lines, f"```\n{commands}\n```"] if commands else lines


def _waste_lines(run: Run) -> list[str]:
    found = kv_waste(run)
    if found is None:
        return []
    paged, contiguous = short_number(found.paged_pct), short_number(found.contiguous_pct)
    return [
        f"{paged} % of the allocated KV memory held tokens; {contiguous} % with max_model_len reserved per sequence."
    ]


def _trial_table(run: Run) -> str:
    known = [column for column in run.columns if column.name in _MARKDOWN_COLUMNS]
    columns = sorted(known, key=lambda column: _MARKDOWN_COLUMNS.index(column.name))
    head = [f"{column.name} ({column.unit})" if column.unit else column.name for column in columns]
    rows = [
        [named_cell(column.name, trial.row.get(column.name), column.unit) for column in columns] for trial in run.trials
    ]
    return markdown_table(head, rows)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; pipes and line breaks in cells cannot break it."""
    lines = ["| " + " | ".join(map(_words, line)) + " |" for line in (head, *rows)]
    return "\n".join([lines[0], "| " + " | ".join("---" for _ in head) + " |", *lines[1:]])


def _words(text: str) -> str:
    """Text from files as Markdown text: no table, no tag, no second line comes out of it."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
