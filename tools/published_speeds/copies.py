"""Rows whose figures are another row's to the digit, though the GPU is a faster one: a page pasted twice.

Two runs do not agree in TTFT, TPOT and throughput to the last digit. The row of the GPU with less memory bandwidth is
taken for the one that was measured. The rule looks at no prediction.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvplan.errors import KvplanError
from published_speeds.models import gpu_named
from published_speeds.rows import PublishedRow

_FIGURES = ("mean_ttft_ms", "mean_tpot_ms", "output_throughput_tok_s")


def copied_rows(rows: Iterable[PublishedRow]) -> dict[str, str]:
    """Ids of copies, each with the id of the row that it is a copy of."""
    measured: dict[tuple[str, ...], PublishedRow] = {}
    found: dict[str, str] = {}
    for row in rows:
        figures = tuple(row.text[column] for column in _FIGURES)
        if not all(figures):
            continue
        other = measured.setdefault((row.text["model"], *figures), row)
        slower, faster = sorted((other, row), key=_bandwidth)
        if _bandwidth(slower) < _bandwidth(faster):
            measured[(row.text["model"], *figures)] = slower
            found[faster.id] = slower.id
    return found


def _bandwidth(row: PublishedRow) -> float:
    """Of the row's GPU; 0 of one that no profile describes."""
    try:
        return gpu_named(row.text["gpu"]).memory_bandwidth_bytes_per_second
    except KvplanError:
        return 0.0
