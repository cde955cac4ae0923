"""Reports onto disk: each file whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kvplan.errors import KvplanError
from kvplan.reports.html.page import report_page
from kvplan.reports.pictures import Picture, draw_pictures
from kvplan.reports.run import load_run

PAGE_FILE: Final = "report.html"


def write_all(directory: Path) -> list[Path]:
    """Pictures and page of a run, into its own directory."""
    run = load_run(directory)
    pictures = draw_pictures(run)
    page = write_file(directory / PAGE_FILE, report_page(run, pictures).encode())
    return [*write_pictures(pictures, directory), page]


def write_pictures(pictures: list[Picture], directory: Path) -> list[Path]:
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
        partial.unlink(missing_ok=True)
        raise KvplanError(f"'{path}' cannot be written: {error.strerror}.", hint="choose another --out") from error
    return path
