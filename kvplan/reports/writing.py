"""Reports as files and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvplan.errors import KvplanError
from kvplan.reports.comparison import Comparison, compare_runs, comparison_document
from kvplan.reports.html.comparison_page import comparison_page
from kvplan.reports.html.page import report_page
from kvplan.reports.pictures import Picture, draw_comparison, draw_pictures
from kvplan.reports.tables import comparison_markdown, csv_text, frame_csv, json_document, json_text, markdown_text
from kvplan.runs.files import write_whole
from kvplan.runs.reader import Run, load_run

PAGE_FILE: Final = "report.html"
COMPARISON_FILE: Final = "comparison.html"


@dataclass(frozen=True, slots=True)
class ReportText:
    """A report as text, the name under which it is kept beside the rows, and notes about what could not be read."""

    text: str
    file_name: str
    notes: tuple[str, ...] = ()


def write_all(directory: Path) -> list[Path]:
    """Pictures and page of a run, in its own directory. KvplanError if it cannot be read or written."""
    run = load_run(directory)
    pictures = draw_pictures(run, with_narrow=True)
    page = directory / PAGE_FILE
    write_whole(page, report_page(run, pictures))
    return [*write_pictures(pictures, directory), page]


def write_png_files(directory: Path, other: Path | None, target: Path) -> list[Path]:
    """The pictures of a run, or the one picture of two, into ``target``."""
    run = load_run(directory)
    make_directory(target)
    pictures = draw_pictures(run) if other is None else _comparison_pictures(compare_runs(run, load_run(other)))
    if not pictures:
        raise KvplanError("No trial was served, so there is nothing to draw.", hint="`--format md` lists the outcomes")
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
        return report_page(run, draw_pictures(run, with_narrow=True))
    if kind == "json":
        return json_text(json_document(run))
    return csv_text(run) if kind == "csv" else markdown_text(run)


def _comparison_text(comparison: Comparison, kind: str) -> str:
    if kind == "html":
        return comparison_page(comparison, _comparison_pictures(comparison, with_narrow=True))
    if kind == "json":
        return json_text(comparison_document(comparison))
    return frame_csv(comparison.table()) if kind == "csv" else comparison_markdown(comparison)


def _comparison_pictures(comparison: Comparison, *, with_narrow: bool = False) -> list[Picture]:
    picture = draw_comparison(comparison, with_narrow=with_narrow)
    return [] if picture is None else [picture]


def write_pictures(pictures: Sequence[Picture], directory: Path) -> list[Path]:
    """One ``<name>.png`` per picture. KvplanError if a file cannot be written."""
    make_directory(directory)
    paths = [directory / f"{picture.name}.png" for picture in pictures]
    for path, picture in zip(paths, pictures, strict=True):
        write_whole(path, picture.png)
    return paths


def make_directory(directory: Path) -> None:
    """The directory and its parents; KvplanError if that is impossible."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KvplanError(f"'{directory}' cannot be created: {error.strerror}.", hint="choose another --out") from error
