"""engines.html: several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kvplan.reports.html.page import notes, status_meanings
from kvplan.reports.html.rendering import render
from kvplan.reports.html.tables import Cell, Heading, Table
from kvplan.reports.pictures import Picture
from kvplan.reports.side_by_side import SideBySide, side_sentences
from kvplan.reports.wording import plural, setting, short_number

_SHOWN: Final = (
    "output_throughput",
    "median_ttft_ms",
    "median_tpot_ms",
    "kv_cache_tokens",
    "kv_cache_tokens_predicted",
)


def side_by_side_page(compared: SideBySide, pictures: Sequence[Picture]) -> str:
    """Sentences and circumstances first, then the picture and every shared setting."""
    labels = [side.label for side in compared.sides]
    return render(
        "side_by_side.html.j2",
        title=" · ".join(labels),
        coverage=_coverage(compared),
        labels=labels,
        notes=[f"{side.label}: {line}" for side in compared.sides for line in notes(side.run)],
        sentences=side_sentences(compared),
        circumstances=compared.circumstances,
        pictures=pictures,
        settings=_settings_table(compared),
        statuses=status_meanings(compared.sides[0].run),
    )


def _coverage(compared: SideBySide) -> str:
    alone = [
        f"{count} only in {side.label}" for count, side in zip(compared.num_alone, compared.sides, strict=True) if count
    ]
    return ", ".join([f"{plural(len(compared.table), 'setting')} in at least two runs", *alone]) + "."


def _settings_table(compared: SideBySide) -> Table:
    heads = [Heading(name) for name in compared.settings]
    for side in compared.sides:
        heads.append(Heading(f"{side.label}: status", is_text=True))
        heads += [Heading(f"{side.label}: {name}") for name in _SHOWN]
    return Table("shared settings", heads, [_cells(compared, row) for row in compared.table.to_dict("records")])


def _cells(compared: SideBySide, row: dict[str, Any]) -> list[Cell]:
    cells = [Cell(setting(row[name]), row[name]) for name in compared.settings]
    for place in range(len(compared.sides)):
        status = row[f"status_{place}"]
        is_known = isinstance(status, str)
        cells.append(Cell(status if is_known else "", status if is_known else "", css="text", is_status=is_known))
        cells += [_figure(row[f"{name}_{place}"]) for name in _SHOWN]
    return cells


def _figure(value: float) -> Cell:
    return Cell("", "") if value != value else Cell(short_number(value), value)
