"""``kvplan report``: a sweep as a page, tables or plots; two compared; several engines or devices side by side."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from kvplan.terminal import fitted


class ReportFormat(str, Enum):
    """Values of ``--format``."""

    html = "html"
    md = "md"
    csv = "csv"
    json = "json"
    png = "png"


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a sweep.")],
    others: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="DIR2",
            help="Directories to compare with the first: another sweep, or sweeps of other engines or devices.",
            show_default=False,
        ),
    ] = None,
    output_format: Annotated[
        ReportFormat, typer.Option("--format", help="HTML page, Markdown, CSV, JSON, or plots as PNG files.")
    ] = ReportFormat.html,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=USD", help="Your price of an hour of a device, for a fleet of several; repeatable."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write, or directory for png; - is stdout. Default: DIR for html and png, else stdout.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make an HTML page, tables or plots of a sweep, or compare sweeps, of one engine or of several, on one
    kind of device or as a fleet.

    Prints the paths of the files it wrote, or the text itself. What a comparison comes to is said beside the page.
    """
    from kvplan.catalog.devices.gpu_profile import parse_price
    from kvplan.foreign_text import printable
    from kvplan.reports.writing import report_text, write_png_files
    from kvplan.runs.storage.files import write_whole

    prices = dict(map(parse_price, price or ()))
    if output_format is ReportFormat.png:
        for path in write_png_files(directory, others or (), _png_directory(directory, out), prices):
            print(path)
        return
    made = report_text(directory, others or (), output_format.value, prices)
    for note in made.notes:
        print(f"note: {note}", file=sys.stderr)
    if output_format is ReportFormat.html:
        for sentence in made.said:
            print(fitted(printable(sentence), sys.stderr, further="  "), file=sys.stderr)
    target = out
    if out is None and output_format is ReportFormat.html:
        target = directory / made.file_name
    if target is None or str(target) == "-":
        sys.stdout.write(made.text)
    else:
        write_whole(target, made.text)
        print(target)


def _png_directory(directory: Path, out: Path | None) -> Path:
    from kvplan.errors import UsageError

    if out is not None and str(out) == "-":
        raise UsageError("PNG files cannot be written to stdout.", hint="give --out a directory")
    return out or directory
