"""Rows of a sweep's results.csv as the page shows them: what was measured beside what had been predicted."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from typing import Any, Final

from kvplan.errors import KvplanError, UsageError
from kvplan.units import format_bytes
from kvplan.web.wording import number

PAIRS: Final = (
    ("KV cache tokens", "kv_cache_tokens_predicted", "kv_cache_tokens", ""),
    ("blocks", "num_blocks_predicted", "num_blocks_total", ""),
    ("weights", "weights_bytes_predicted", "weights_bytes", "bytes"),
    ("sequences at once", "pred_max_concurrency", "meas_max_concurrency", ""),
    ("output", "pred_output_throughput", "output_throughput", "tokens/s"),
    ("TTFT, median", "pred_median_ttft_ms", "median_ttft_ms", "ms"),
    ("TPOT, median", "pred_median_tpot_ms", "median_tpot_ms", "ms"),
)
"""Name, the column that was predicted, the one that was measured, the unit of both."""
_MOST_ROWS: Final = 500
_ABOUT: Final = ("model_id", "device_name", "block_size", "max_num_seqs", "max_num_batched_tokens", "status")
_MARKS: Final = ("trial_id", "run_id")


def rows_view(text: str) -> dict[str, Any]:
    """Return the pairs of every row that has any. UsageError for what is no such file."""
    try:
        found = list(csv.DictReader(io.StringIO(text)))
    except csv.Error as error:
        raise UsageError("This is no CSV file.", hint="drop the results.csv of a kvplan sweep") from error
    known = {column for _, predicted, measured, _ in PAIRS for column in (predicted, measured)}
    if not found or not known & set(found[0]):
        raise UsageError("This has no rows of a kvplan sweep.", hint="drop the results.csv of a sweep's directory")
    rows = [row for row in map(_row, found) if row["pairs"]]
    if not rows:
        raise KvplanError("No row has both a prediction and a measurement.", hint="did the sweep's trials end well?")
    return {"rows": rows[:_MOST_ROWS], "num_rows": len(found), "num_shown": min(len(rows), _MOST_ROWS)}


def _row(cells: Mapping[str, Any]) -> dict[str, Any]:
    about = [_about(name, cells[name]) for name in _ABOUT if cells.get(name)]
    pairs = [pair for each in PAIRS if (pair := _pair(cells, *each)) is not None]
    return {"name": next((cells[name] for name in _MARKS if cells.get(name)), ""), "about": about, "pairs": pairs}


def _about(name: str, cell: Any) -> str:
    """A setting with its name, what is no number by itself."""
    return f"{name} {cell}" if str(cell).isdigit() else str(cell)


def _pair(cells: Mapping[str, Any], name: str, predicted: str, measured: str, unit: str) -> dict[str, str] | None:
    mine, seen = _read(cells.get(predicted)), _read(cells.get(measured))
    if mine is None or seen is None:
        return None
    apart = "" if not seen else f"{100 * (mine / seen - 1):+.1f} %"
    return {"name": name, "predicted": _shown(mine, unit), "measured": _shown(seen, unit), "difference": apart}


def _shown(value: float, unit: str) -> str:
    if unit == "bytes":
        return format_bytes(value)
    return f"{value:,.0f}" if not unit else f"{number(value)} {unit}"


def _read(cell: Any) -> float | None:
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None
