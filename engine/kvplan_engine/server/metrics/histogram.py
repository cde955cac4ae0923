"""A histogram as plain numbers. prometheus_client's own takes a lock and a loop over the buckets per observation."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.utils import floatToGoString


class Histogram:
    """Observations counted by the first of ``bounds`` (ascending) that they do not exceed."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> Iterator[tuple[str, float]]:
        """(upper bound as Prometheus writes it, observations up to it), ending with +Inf."""
        return zip(map(floatToGoString, (*self._bounds, float("inf"))), accumulate(self._counts), strict=True)
