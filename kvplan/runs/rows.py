"""What is asked of a row, whoever asks: its cells by name, its settings, whether it was served and how fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from kvplan.runs.columns import COLUMN_NAMES, Row
from kvplan.runs.statuses import MEASURED_STATUSES
from kvplan.runs.trials import SETTING_NAMES, TrialSettings

REFERENCE_KERNELS: Final = "reference"
"""In the column ``kernels``: plain torch computed, for want of compiled kernels."""

OWN_ENGINE: Final = "kvplan"
Cell = str | float | None  # to a type checker int and bool are floats


def empty_row() -> Row:
    """A row with every column and nothing known."""
    return cast(Row, dict.fromkeys(COLUMN_NAMES))


_EARLIER_NAMES: Final = {"planes": "design_parts", "prediction_scale": "learned_time_factor"}


def as_written_now(row: Mapping[str, object]) -> Row:
    """Return the row of any version under today's names of columns, with the engine's name.

    Earlier versions left that out where it was kvplan's own. A server that ran already has a URL, and its engine is
    what it told.
    """
    named = {_EARLIER_NAMES.get(name, name): value for name, value in row.items()}
    if named.get("kv_waste_pct") is None and named.get("frag_pct") is not None:
        named["kv_waste_pct"] = named["frag_pct"]
    if not named.get("engine") and not named.get("url"):
        named["engine"] = OWN_ENGINE
    return cast(Row, named)


def cell(row: Row, name: str) -> Cell:
    """The cell of a column known by its name alone; None where the row lacks the column."""
    return cast(Mapping[str, Cell], row).get(name)


def number(row: Row, name: str) -> float | None:
    """The figure in a column known by its name alone; None for a missing one and for text."""
    value = cell(row, name)
    return None if isinstance(value, str) else value


def settings_of(row: Row) -> TrialSettings:
    """The engine settings of a row. dtype and kv_cache_dtype are what was used, not the ``auto`` that was asked for.

    A server that was not started for the row may not tell all of them (TrialSettings.is_known).
    """
    known = {name: value for name in SETTING_NAMES if (value := cell(row, name)) is not None}
    return TrialSettings.of_known(known)


def is_measured(row: Row) -> bool:
    """True if every request was served."""
    return row["status"] in MEASURED_STATUSES


def is_counted(row: Row) -> bool:
    """True if the engine only counted blocks and bytes (load format none): such a row has no speeds."""
    return row.get("load_format") == "none"


def ran_without_kernels(row: Row) -> bool:
    """True if plain torch computed the steps, many times slower than the engine is. Older rows do not say."""
    return row.get("kernels") == REFERENCE_KERNELS


def has_speed(row: Row) -> bool:
    """True if every request was served, and computed."""
    return is_measured(row) and not is_counted(row)


def throughput_of(row: Row) -> float:
    """Output tokens per second of a row that was measured and computed."""
    throughput = row["output_throughput"]
    assert throughput is not None, f"trial {row.get('trial_id')} was not measured"
    return throughput
