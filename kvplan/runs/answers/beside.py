"""What was predicted beside what was measured, in words: blocks, sequences at once, speed and latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvplan.runs.columns import Row
from kvplan.runs.rows import Cell, has_speed, number


@dataclass(frozen=True, slots=True)
class Pair:
    """A figure and its prediction: the names of their columns, what it is called, and its unit.

    is_exact: a count, which is predicted exactly or wrong. ratio: the column of measured / predicted, '' without one.
    """

    measured: str
    predicted: str
    label: str
    unit: str = ""
    is_exact: bool = False
    ratio: str = ""


PAIRS: Final = (
    Pair("num_blocks_total", "num_blocks_predicted", "blocks", is_exact=True),
    Pair("max_running", "pred_max_concurrency", "at once", is_exact=True),
    Pair("output_throughput", "pred_output_throughput", "output", "tokens/s", ratio="throughput_over_pred"),
    Pair("median_ttft_ms", "pred_median_ttft_ms", "median TTFT", "ms", ratio="ttft_over_pred"),
    Pair("median_tpot_ms", "pred_median_tpot_ms", "median TPOT", "ms", ratio="tpot_over_pred"),
)


def ratios(row: Row) -> dict[str, float]:
    """Return the columns of measured / predicted that the row's figures give."""
    found = {}
    for pair in PAIRS:
        measured, predicted = number(row, pair.measured), number(row, pair.predicted)
        if pair.ratio and measured is not None and predicted:
            found[pair.ratio] = measured / predicted
    return found


def predicted_of(row: Row) -> dict[str, Cell]:
    """Return what was predicted of a setting, under the names of what was measured; nothing of what was not."""
    return {pair.measured: value for pair in PAIRS if (value := number(row, pair.predicted)) is not None}


def beside_phrases(measured: Mapping[str, object], predicted: Mapping[str, object]) -> list[str]:
    """``blocks 166 = 166 predicted``, ``output 99.7 tokens/s, 48.2 predicted (2.07 times)``."""
    found = []
    for pair in PAIRS:
        was, expected = measured.get(pair.measured), predicted.get(pair.measured)
        if not isinstance(was, int | float) or not isinstance(expected, int | float):
            continue
        unit = f" {pair.unit}" if pair.unit else ""
        if pair.is_exact:
            sign = "=" if was == expected else "≠"
            found.append(f"{pair.label} {was:,.0f} {sign} {expected:,.0f} predicted")
        elif expected:
            found.append(f"{pair.label} {_short(was)}{unit}, {_short(expected)} predicted ({was / expected:.2f} times)")
    return found


def ratio_sentences(rows: Sequence[Row]) -> list[str]:
    """Return for each speed the median of measured / predicted over the rows, with the range of nine in ten."""
    found = []
    timed = [row for row in rows if has_speed(row)]
    for pair in PAIRS:
        values = sorted(value for row in timed if (value := ratios(row).get(pair.ratio)) is not None)
        if pair.ratio and values:
            cut = len(values) // 20
            low, high = values[cut], values[-1 - cut]
            middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
            over = f"{low:.2f} to {high:.2f} in {'nine of ten of ' if cut else ''}{len(values):,} trials"
            found.append(f"{pair.label}: measured / predicted {middle:.2f}" + (f" ({over})" if len(values) > 1 else ""))
    return found


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
