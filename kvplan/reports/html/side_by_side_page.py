"""engines.html: several runs side by side; comparison.html: two of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from kvplan.reports.comparison import COMPARED_COLUMNS, Comparison, verdicts
from kvplan.reports.findings import recommendations
from kvplan.reports.fleet import FLEET_HEADS, fleet_cells, fleet_values
from kvplan.reports.html.page import notes, status_meanings
from kvplan.reports.html.rendering import render
from kvplan.reports.html.tables import Cell, Heading, Table
from kvplan.reports.pictures import Picture
from kvplan.reports.side_by_side import SideBySide, side_sentences
from kvplan.reports.wording import plural, setting, short_number


def side_by_side_page(compared: SideBySide, pictures: Sequence[Picture]) -> str:
    """Sentences and circumstances first, then the picture and every setting that several tried."""
    labels = [side.label for side in compared.sides]
    alone = [
        f"{count} only in {side.label}" for count, side in zip(compared.num_alone, compared.sides, strict=True) if count
    ]
    return render(
        "side_by_side.html.j2",
        title=" · ".join(labels),
        coverage=", ".join([f"{plural(len(compared.table), 'setting')} in at least two runs", *alone]) + ".",
        labels=labels,
        notes=[f"{side.label}: {line}" for side in compared.sides for line in notes(side.run)],
        sentences=side_sentences(compared),
        circumstances=compared.circumstances,
        devices=_devices_table(compared),
        pictures=pictures,
        settings=_settings_table(compared),
        statuses=status_meanings(compared.sides[0].run),
    )


def _devices_table(compared: SideBySide) -> Table | None:
    """Each device at its fastest setting; None where the runs are of one kind."""
    if not compared.devices:
        return None
    heads = [Heading(name, unit, is_text=name == "device") for name, unit in FLEET_HEADS]
    rows = [
        [
            Cell(text, "" if value is None else value, css="text" if place == 0 else None)
            for place, (text, value) in enumerate(zip(fleet_cells(device), fleet_values(device), strict=True))
        ]
        for device in compared.devices
    ]
    return Table("devices, each at its fastest setting", heads, rows)


def _settings_table(compared: SideBySide) -> Table:
    """A line for each run of a setting, so that a table of any number of engines is as wide as that of two."""
    heads = [*(Heading(name) for name in compared.settings), Heading(compared.label_head, is_text=True)]
    heads += [Heading("status", is_text=True), *(Heading(name) for name in compared.shown_figures)]
    rows = [
        _cells(compared, record, side.label)
        for record in compared.records()
        for side in compared.sides
        if record[side.label]["status"]
    ]
    return Table("settings that several tried", heads, rows)


def _cells(compared: SideBySide, record: dict[str, Any], label: str) -> list[Cell]:
    settings = [Cell(setting(record[name]), record[name]) for name in compared.settings]
    status = record[label]["status"]
    figures = [_figure(record[label][name]) for name in compared.shown_figures]
    return [*settings, Cell(label, label, css="text"), Cell(status, status, css="text", is_status=True), *figures]


def _figure(value: float | None) -> Cell:
    return Cell("", "") if value is None else Cell(short_number(value), value)


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
    rows = [_match_cells(match, varying) for match in matches.to_dict("records")]
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


def _match_cells(match: dict[str, Any], names: Sequence[str]) -> list[Cell]:
    cells = [Cell(setting(match[name]), match[name]) for name in names]
    cells += [
        Cell(status, status, css="text", is_status=True) for status in (match["status_first"], match["status_second"])
    ]
    for column in COMPARED_COLUMNS:
        cells += [_match_figure(match, column, "first"), _match_figure(match, column, "second")]
        ratio = match[f"{column}_ratio"]
        cells.append(Cell("", "") if pd.isna(ratio) else Cell(f"{ratio:.2f}", ratio))
    return cells


def _match_figure(match: dict[str, Any], column: str, side: str) -> Cell:
    median, low, high, count = (match[f"{column}{part}_{side}"] for part in ("", "_min", "_max", "_count"))
    if pd.isna(median):
        return Cell("", "")
    several = f"{short_number(low)} to {short_number(high)}, {count} runs"
    return Cell(short_number(median), median, hint=several if count > 1 else None)
