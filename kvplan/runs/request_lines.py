"""What a run directory keeps of each request: a line of ``requests.jsonl``.

Times are seconds since the first measured request arrived, so those of warm-up requests are negative. A request is
named by the trial that it belongs to and its place in that trial's workload.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import sub
from typing import Final, TypedDict

REQUESTS: Final = "requests.jsonl"

_DIGITS: Final = 6
"""Microseconds: what is finer is not the client's to tell."""


class _Always(TypedDict):
    trial_id: str
    id: int
    scheduled_s: float
    sent_s: float
    ttft_s: float | None
    tpot_s: float | None
    itl_max_s: float | None
    e2el_s: float | None
    end_s: float | None
    input_tokens: int
    cached_tokens: int | None
    output_tokens: int | None
    error: str | None


class RequestLine(_Always, total=False):
    """One request. A figure that is not known is None: no token came, or nobody counted.

    scheduled_s: when the load wanted it sent. sent_s: when it was. ttft_s, e2el_s: to its first and its last token from
    the moment that the row's latencies count from (the schedule in an open loop, else the sending). tpot_s: mean time
    of a token after the first. itl_max_s: the longest gap between two tokens. itl_s: all gaps, where they were asked
    for. end_s: when its last token came, or it failed. cached_tokens: of the prompt, from the prefix cache.
    is_warmup: true of requests that are not measured, left out of all others.
    """

    is_warmup: bool
    itl_s: list[float]


def rounded(seconds: float | None) -> float | None:
    """Return the time in whole microseconds."""
    return None if seconds is None else round(seconds, _DIGITS)


def longest_gap(times: Sequence[float]) -> float | None:
    """Return the longest time between two neighbours; None of fewer than two. Millions of tokens pass through here."""
    return rounded(max(map(sub, times[1:], times), default=None))


def gaps_between(times: Sequence[float]) -> list[float]:
    """Return the time between each two neighbours, in whole microseconds."""
    return [round(after - before, _DIGITS) for before, after in pairwise(times)]
