"""comparison.html: two runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from kvplan.reports.comparison import COMPARED_COLUMNS, Comparison, verdicts
from kvplan.reports.findings import recommendations
from kvplan.reports.html.page import notes, status_meanings
from kvplan.reports.html.rendering import render
from kvplan.reports.html.tables import Cell, Heading, Table
from kvplan.reports.pictures import Picture
from kvplan.reports.wording import plural, setting, short_number


def comparison_page(comparison: Comparison, pictures: Sequence[Picture]) -> str:
    """Verdicts and circumstances first, then the picture, both recommendations and every setting that both tried."""
    first, second = comparison.names
    runs = dict(zip(comparison.names, comparison.runs, strict=True))
    matches = comparison.matches
    varying = [name for name in comparison.settings if matches[name].nunique(dropna=False) > 1]
    fixed = [name for name in comparison.settings if name not in varying]
    alone = [
        f"{count} only in {name}" for name, count in zip(comparison.names, comparison.num_alone, strict=True) if count
    ]
    heads = [Heading(name) for name in varying]
    heads += [Heading(f"status {side}", is_text=True) for side in ("first", "second")]
    heads += [Heading(f"{column} {part}") for column in COMPARED_COLUMNS for part in ("first", "second", "ratio")]
    rows = [_cells(match, varying) for match in matches.to_dict("records")]
    return render(
        "comparison.html.j2",
        title=f"{second} vs. {first}",
        coverage=", ".join([f"{plural(len(comparison.matches), 'setting')} in both", *alone]) + ".",
        names=comparison.names,
        notes=[f"{name}: {line}" for name, run in runs.items() for line in notes(run)],
        verdicts=verdicts(comparison),
        differences=comparison.differences,
        pictures=pictures,
        recommendations={name: next(iter(recommendations(run)), None) for name, run in runs.items()},
        shared=", ".join(f"{name} {setting(comparison.records()[0][name])}" for name in fixed),
        settings=Table("settings that both tried", heads, rows),
        statuses=status_meanings(comparison.runs[0]),
    )


def _cells(match: dict[str, Any], names: Sequence[str]) -> list[Cell]:
    cells = [Cell(setting(match[name]), match[name]) for name in names]
    cells += [
        Cell(status, status, css="text", is_status=True) for status in (match["status_first"], match["status_second"])
    ]
    for column in COMPARED_COLUMNS:
        cells += [_figure(match, column, "first"), _figure(match, column, "second")]
        ratio = match[f"{column}_ratio"]
        cells.append(Cell("", "") if pd.isna(ratio) else Cell(f"{ratio:.2f}", ratio))
    return cells


def _figure(match: dict[str, Any], column: str, side: str) -> Cell:
    median, low, high, count = (match[f"{column}{part}_{side}"] for part in ("", "_min", "_max", "_count"))
    if pd.isna(median):
        return Cell("", "")
    several = f"{short_number(low)} to {short_number(high)}, {count} runs"
    return Cell(short_number(median), median, hint=several if count > 1 else None)
