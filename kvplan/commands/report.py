"""``kvplan report``: a sweep's directory as page, tables or pictures; two directories compared."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class ReportFormat(str, Enum):
    """What ``--format`` takes."""

    html = "html"
    md = "md"
    csv = "csv"
    json = "json"
    png = "png"


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a sweep.")],
    other: Annotated[
        Path | None, typer.Argument(metavar="DIR2", help="A second one to compare with the first.")
    ] = None,
    output_format: Annotated[
        ReportFormat, typer.Option("--format", help="Page, Markdown, table, document or pictures.")
    ] = ReportFormat.html,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A file, or for png a directory. Default: DIR for html and png, stdout for the others; - is stdout.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Draw tables, plots and a page from a sweep's directory, or compare two.

    Paths of files that were written, or the text itself, go to stdout.
    """
    from kvplan.reports.writing import report_text, write_file, write_png_files

    if output_format is ReportFormat.png:
        for path in write_png_files(directory, other, _png_directory(directory, out)):
            print(path)
        return
    made = report_text(directory, other, output_format.value)
    for note in made.notes:
        print(f"note: {note}", file=sys.stderr)
    target = out
    if out is None and output_format is ReportFormat.html:
        target = directory / made.file_name
    if target is None or str(target) == "-":
        sys.stdout.write(made.text)
    else:
        print(write_file(target, made.text.encode()))


def _png_directory(directory: Path, out: Path | None) -> Path:
    from kvplan.errors import UsageError

    if out is not None and str(out) == "-":
        raise UsageError("Several pictures cannot go to stdout.", hint="give --out a directory")
    return out or directory
