"""Reports onto disk: each file whole or not at all."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvplan.errors import KvplanError
from kvplan.reports.comparison import Comparison, compare_runs, comparison_document, comparison_rows, verdicts
from kvplan.reports.html.comparison_page import comparison_page
from kvplan.reports.html.page import report_page
from kvplan.reports.pictures import Picture, draw_comparison, draw_pictures
from kvplan.reports.tables import csv_text, json_document, json_text, markdown_table, markdown_text
from kvplan.reports.wording import named_cell
from kvplan.runs.reader import Run, load_run

PAGE_FILE: Final = "report.html"
COMPARISON_FILE: Final = "comparison.html"


@dataclass(frozen=True, slots=True)
class ReportText:
    """A report as text, the name under which it is kept beside the rows, and what a reader must be told about it."""

    text: str
    file_name: str
    notes: tuple[str, ...] = ()


def write_all(directory: Path) -> list[Path]:
    """Pictures and page of a run, into its own directory."""
    run = load_run(directory)
    pictures = draw_pictures(run)
    page = write_file(directory / PAGE_FILE, report_page(run, pictures).encode())
    return [*write_pictures(pictures, directory), page]


def write_png_files(directory: Path, other: Path | None, target: Path) -> list[Path]:
    """The pictures of a run, or the one picture of two, into ``target``."""
    run = load_run(directory)
    make_directory(target)
    pictures = draw_pictures(run) if other is None else [draw_comparison(compare_runs(run, load_run(other)))]
    return write_pictures(pictures, target)


def report_text(directory: Path, other: Path | None, kind: str) -> ReportText:
    """A report in one of the text formats: html, md, csv, json."""
    run = load_run(directory)
    if other is None:
        return ReportText(_run_text(run, kind), PAGE_FILE, run.notes)
    comparison = compare_runs(run, load_run(other))
    notes = tuple(dict.fromkeys(note for one in comparison.runs for note in one.notes))
    return ReportText(_comparison_text(comparison, kind), COMPARISON_FILE, notes)


def _run_text(run: Run, kind: str) -> str:
    if kind == "html":
        return report_page(run, draw_pictures(run))
    makers = {"md": markdown_text, "csv": csv_text, "json": lambda run: json_text(json_document(run))}
    return makers[kind](run)


def _comparison_text(comparison: Comparison, kind: str) -> str:
    if kind == "html":
        return comparison_page(comparison, [draw_comparison(comparison)])
    if kind == "json":
        return json_text(comparison_document(comparison))
    return _comparison_csv(comparison) if kind == "csv" else _comparison_markdown(comparison)


def _comparison_csv(comparison: Comparison) -> str:
    rows = comparison_rows(comparison)
    file = io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _comparison_markdown(comparison: Comparison) -> str:
    rows = comparison_rows(comparison)
    head = list(dict.fromkeys(name for row in rows for name in row))
    differing = [[entry.name, entry.first, entry.second] for entry in comparison.differences]
    parts = [f"# {comparison.names[1]} against {comparison.names[0]}"]
    parts.append("\n".join(f"- {line}" for line in verdicts(comparison)))
    if differing:
        parts += ["## What differs", markdown_table(["", "first", "second"], differing)]
    parts += [
        "## Shared settings",
        markdown_table(head, [[named_cell(name, row.get(name)) for name in head] for row in rows]),
    ]
    return "\n\n".join(parts) + "\n"


def write_pictures(pictures: Sequence[Picture], directory: Path) -> list[Path]:
    """One ``<name>.png`` per picture."""
    make_directory(directory)
    return [write_file(directory / f"{picture.name}.png", picture.png) for picture in pictures]


def make_directory(directory: Path) -> None:
    """The directory and its parents; KvplanError where that is impossible."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KvplanError(f"'{directory}' cannot be made: {error.strerror}.", hint="choose another --out") from error


def write_file(path: Path, content: bytes) -> Path:
    """Write beside the target and rename over it: a reader never sees half a file. KvplanError when it fails."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise KvplanError(f"'{path}' cannot be written: {error.strerror}.", hint="choose another --out") from error
    return path
