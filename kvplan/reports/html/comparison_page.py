"""comparison.html: two runs held against each other."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.reports.comparison import COMPARED_COLUMNS, Comparison, Match, verdicts
from kvplan.reports.findings import recommendations
from kvplan.reports.html.page import notes, status_meanings
from kvplan.reports.html.rendering import render
from kvplan.reports.html.tables import Cell, Heading, Table
from kvplan.reports.pictures import Picture
from kvplan.reports.selection import Spread
from kvplan.reports.wording import plural, setting, short_number


def comparison_page(comparison: Comparison, pictures: Sequence[Picture]) -> str:
    """Verdicts and circumstances first, then the picture, both recommendations and every shared setting."""
    first, second = comparison.names
    runs = dict(zip(comparison.names, comparison.runs, strict=True))
    varying, shared = _settings_by_kind(comparison)
    return render(
        "comparison.html.j2",
        title=f"{second} against {first}",
        coverage=_coverage(comparison),
        names=comparison.names,
        notes=[f"{name}: {line}" for name, run in runs.items() for line in notes(run)],
        verdicts=verdicts(comparison),
        differences=comparison.differences,
        pictures=pictures,
        recommendations={name: next(iter(recommendations(run)), None) for name, run in runs.items()},
        shared=", ".join(f"{name} {setting(comparison.matches[0].settings.get(name))}" for name in shared),
        settings=_settings_table(comparison.matches, varying),
        statuses=status_meanings(comparison.runs[0]),
    )


def _coverage(comparison: Comparison) -> str:
    alone = [
        f"{count} only in {name}" for name, count in zip(comparison.names, comparison.num_alone, strict=True) if count
    ]
    return ", ".join([f"{plural(len(comparison.matches), 'setting')} in both", *alone]) + "."


def _settings_by_kind(comparison: Comparison) -> tuple[list[str], list[str]]:
    """Names of the settings that vary over the matches, and of those that do not."""
    every = list(dict.fromkeys(name for match in comparison.matches for name in match.settings))
    varying = [name for name in every if len({str(match.settings.get(name)) for match in comparison.matches}) > 1]
    return varying, [name for name in every if name not in varying]


def _settings_table(matches: Sequence[Match], names: Sequence[str]) -> Table:
    heads = [*names, "status first", "status second"]
    heads += [f"{column} {part}" for column in COMPARED_COLUMNS for part in ("first", "second", "ratio")]
    return Table("shared settings", [Heading(name) for name in heads], [_cells(match, names) for match in matches])


def _cells(match: Match, names: Sequence[str]) -> list[Cell]:
    cells = [Cell(setting(match.settings.get(name)), match.settings.get(name, "")) for name in names]
    cells += [Cell(status, status, is_status=True) for status in match.statuses]
    for column in COMPARED_COLUMNS:
        cells += [_figure(spread) for spread in match.figures[column]]
        ratio = match.ratio(column)
        cells.append(Cell("", "") if ratio is None else Cell(f"{ratio:.2f}", ratio))
    return cells


def _figure(spread: Spread | None) -> Cell:
    if spread is None:
        return Cell("", "")
    several = f"{short_number(spread.low)} to {short_number(spread.high)}, {spread.count} runs"
    return Cell(short_number(spread.median), spread.median, hint=several if spread.count > 1 else None)
