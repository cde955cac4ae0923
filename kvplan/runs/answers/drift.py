"""Whether the requests of a run were alike from its beginning to its end: warm-up and drift.

A difference counts where it is large and chance is no explanation: a rank-sum test (Mann and Whitney) of more than
three standard deviations, which asks nothing of how latencies are distributed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from kvplan.runs.request_lines import RequestLine

FEWEST_REQUESTS: Final = 30
_WARMUP_SHARE: Final = 0.1
_FEWEST_IN_A_PART: Final = 5
_WARMUP_RATIO: Final = 1.5
_DRIFT_RATIO: Final = 1.25
_STANDARD_DEVIATIONS: Final = 3.0
# Requests that are all sent at once have no beginning and no end.
_LEAST_SPAN_SHARE: Final = 0.25
_LATENCIES: Final[dict[Literal["ttft_s", "tpot_s"], str]] = {"ttft_s": "TTFT", "tpot_s": "TPOT"}


@dataclass(frozen=True, slots=True)
class Change:
    """Medians, in seconds, of two parts of a run that differ."""

    before: float
    after: float

    def text(self) -> str:
        return f"{_milliseconds(self.before)} to {_milliseconds(self.after)} ms"


def drift_sentences(lines: Sequence[RequestLine]) -> list[str]:
    """Return what changed over the run, one sentence each; [] for a steady run, and for one too short to tell."""
    served = sorted((line for line in _measured(lines) if line["ttft_s"] is not None), key=lambda line: line["sent_s"])
    if len(served) < FEWEST_REQUESTS or not _is_spread(served):
        return []
    number = max(_FEWEST_IN_A_PART, round(_WARMUP_SHARE * len(served)))
    sentences = []
    for name, label in _LATENCIES.items():
        values = np.array([value for line in served if (value := line[name]) is not None])
        if len(values) < FEWEST_REQUESTS:
            continue
        warmup = _changed(values[:number], values[number:], _WARMUP_RATIO)
        if warmup is not None and warmup.before > warmup.after:
            sentences.append(
                f"Warm-up: the median {label} of the first {number:,} requests was {_milliseconds(warmup.before)} ms, "
                f"of the others {_milliseconds(warmup.after)} ms; --num-warmups {number} leaves them out"
            )
        steady = values[number:]
        third = len(steady) // 3
        drift = _changed(steady[:third], steady[-third:], _DRIFT_RATIO)
        if drift is not None:
            sentences.append(f"Drift: the median {label} went from {drift.text()} from the first third to the last")
    return sentences


def _measured(lines: Sequence[RequestLine]) -> list[RequestLine]:
    return [line for line in lines if not line.get("is_warmup")]


def _is_spread(served: Sequence[RequestLine]) -> bool:
    """Whether requests were sent over a good part of the run."""
    end = max(line["end_s"] or 0.0 for line in served)
    return served[-1]["sent_s"] - served[0]["sent_s"] >= _LEAST_SPAN_SHARE * end


def _changed(first: np.ndarray, second: np.ndarray, least_ratio: float) -> Change | None:
    """The medians where they differ by this ratio, either way, and not by chance."""
    if min(len(first), len(second)) < _FEWEST_IN_A_PART:
        return None
    before, after = float(np.median(first)), float(np.median(second))
    low, high = sorted((before, after))
    if high < least_ratio * low or abs(_rank_sum_deviation(first, second)) < _STANDARD_DEVIATIONS:
        return None
    return Change(before, after)


def _rank_sum_deviation(first: np.ndarray, second: np.ndarray) -> float:
    """How far U lies from what chance gives, in its standard deviations."""
    ordered = np.sort(second)
    below = np.searchsorted(ordered, first, side="left")
    not_above = np.searchsorted(ordered, first, side="right")
    statistic = float((below + not_above).sum()) / 2
    size = len(first) * len(second)
    return float((statistic - size / 2) / np.sqrt(size * (len(first) + len(second) + 1) / 12))


def _milliseconds(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
