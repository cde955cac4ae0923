"""Reports as files and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kvplan.errors import KvplanError, UsageError
from kvplan.reports.comparison import Comparison, compare_runs, comparison_document, difference_sentences, verdicts
from kvplan.reports.findings import kernels_sentence
from kvplan.reports.fleet import by_device, is_fleet
from kvplan.reports.html.page import report_page
from kvplan.reports.html.side_by_side_page import comparison_page, side_by_side_page
from kvplan.reports.pictures import Picture, draw_comparison, draw_fleet, draw_pictures, draw_side_by_side
from kvplan.reports.plots.side_by_side import MOST_RUNS
from kvplan.reports.side_by_side import SideBySide, engine_of, set_side_by_side, side_by_side_document, side_sentences
from kvplan.reports.tables import (
    comparison_markdown,
    csv_text,
    frame_csv,
    json_document,
    json_text,
    markdown_text,
    side_by_side_frame,
    side_by_side_markdown,
)
from kvplan.runs.storage.files import write_whole
from kvplan.runs.storage.reader import Run, load_run

PAGE_FILE: Final = "report.html"
COMPARISON_FILE: Final = "comparison.html"
SIDE_BY_SIDE_FILE: Final = "engines.html"
FLEET_FILE: Final = "fleet.html"

Prices = Mapping[str, float]
NO_PRICES: Final[Prices] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ReportText:
    """A report as text, the name under which it is kept beside the rows, and notes about what could not be read.

    said: what a comparison comes to, in sentences for a terminal.
    """

    text: str
    file_name: str
    notes: tuple[str, ...] = ()
    said: tuple[str, ...] = ()


def write_all(directory: Path) -> list[Path]:
    """Pictures and page of a run, in its own directory. KvplanError if it cannot be read or written."""
    subject = _subject(directory, (), NO_PRICES)
    page = directory / PAGE_FILE
    if isinstance(subject, SideBySide):
        pictures = _side_by_side_pictures(subject, with_narrow=True)
        write_whole(page, side_by_side_page(subject, pictures))
        return [*write_pictures(pictures, directory), page]
    assert isinstance(subject, Run), "one directory is never compared with another"
    pictures = draw_pictures(subject, with_narrow=True)
    write_whole(page, report_page(subject, pictures))
    return [*write_pictures(pictures, directory), page]


def write_png_files(directory: Path, others: Sequence[Path], target: Path, prices: Prices = NO_PRICES) -> list[Path]:
    """The pictures of a run, or those of two or more, into ``target``."""
    subject = _subject(directory, others, prices)
    make_directory(target)
    if isinstance(subject, Run):
        pictures = draw_pictures(subject)
    elif isinstance(subject, SideBySide):
        pictures = _side_by_side_pictures(subject)
    else:
        pictures = _comparison_pictures(subject)
    if not pictures:
        raise KvplanError("No trial was served, so there is nothing to draw.", hint="`--format md` lists the outcomes")
    return write_pictures(pictures, target)


def report_text(directory: Path, others: Sequence[Path], kind: str, prices: Prices = NO_PRICES) -> ReportText:
    """A report in one of the text formats: html, md, csv, json. prices: of an hour of a device, by its name."""
    subject = _subject(directory, others, prices)
    if isinstance(subject, Run):
        return ReportText(_run_text(subject, kind), PAGE_FILE, _notes([subject]))
    if isinstance(subject, SideBySide):
        runs = [side.run for side in subject.sides]
        name = FLEET_FILE if subject.devices else SIDE_BY_SIDE_FILE
        return ReportText(_side_by_side_text(subject, kind), name, _notes(runs), tuple(side_sentences(subject)))
    said = (*verdicts(subject), *difference_sentences(subject))
    return ReportText(_comparison_text(subject, kind), COMPARISON_FILE, _notes(subject.runs), said)


def _subject(directory: Path, others: Sequence[Path], prices: Prices) -> Run | Comparison | SideBySide:
    """One run; two of one engine compared in detail; several engines or devices, or more than two runs, side by side.

    A directory with rows of several devices counts as one run for each of them.
    """
    runs = [part for each in (directory, *others) for part in by_device(load_run(each))]
    if len(runs) > MOST_RUNS:
        raise UsageError(f"{len(runs)} runs are too many for one report.", hint=f"give at most {MOST_RUNS}")
    if prices and not is_fleet(runs):
        raise UsageError("--price is for runs of several devices.", hint="leave it out")
    if len(runs) == 1:
        return runs[0]
    if len(runs) == 2 and engine_of(runs[0]) == engine_of(runs[1]) and not is_fleet(runs):
        return compare_runs(*runs)
    return set_side_by_side(runs, prices)


def _notes(runs: Sequence[Run]) -> tuple[str, ...]:
    """What could not be read, and whose speeds are not the engine's: the page says it first too."""
    lines = [note for run in runs for note in run.notes]
    for run in runs:
        if sentence := kernels_sentence(run):
            lines.append(sentence if len(runs) == 1 else f"{run.directory.name}: {sentence}")
    return tuple(dict.fromkeys(lines))


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


def _side_by_side_text(compared: SideBySide, kind: str) -> str:
    if kind == "html":
        return side_by_side_page(compared, _side_by_side_pictures(compared, with_narrow=True))
    if kind == "json":
        return json_text(side_by_side_document(compared))
    return frame_csv(side_by_side_frame(compared)) if kind == "csv" else side_by_side_markdown(compared)


def _side_by_side_pictures(compared: SideBySide, *, with_narrow: bool = False) -> list[Picture]:
    drawn = (draw_fleet(compared, with_narrow=with_narrow), draw_side_by_side(compared, with_narrow=with_narrow))
    return [picture for picture in drawn if picture is not None]


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
