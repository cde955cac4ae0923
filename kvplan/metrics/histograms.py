"""Histograms of a server: counts per bucket, what came in between two readings, and percentiles of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvplan.metrics.prometheus import Sample


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations since the server started. bounds: upper bounds of the buckets, ascending, the last one infinite.

    cumulative: observations at or below each bound; total: the sum of all observations, in the metric's unit.
    """

    bounds: tuple[float, ...]
    cumulative: tuple[float, ...]
    total: float

    @property
    def count(self) -> float:
        return self.cumulative[-1]

    @property
    def mean(self) -> float | None:
        """None without an observation."""
        return self.total / self.count if self.count > 0 else None

    def percentile(self, percent: float) -> float | None:
        """Interpolated within its bucket, as PromQL's ``histogram_quantile`` does; the first bucket starts at 0.

        None without observations, and where the percentile lies above the last finite bound: there the histogram does
        not know it. ``percentile_range`` says how wide the bucket is.
        """
        place = self._bucket_of(percent)
        if place is None or math.isinf(self.bounds[place]):
            return None
        low, high = self._edges(place)
        before = self.cumulative[place - 1] if place else 0.0
        inside = self.cumulative[place] - before
        return low + (high - low) * (percent / 100 * self.count - before) / inside

    def percentile_range(self, percent: float) -> tuple[float, float] | None:
        """The edges of the bucket that holds the percentile: all that is certain. None without observations."""
        place = self._bucket_of(percent)
        return None if place is None else self._edges(place)

    def since(self, earlier: Histogram) -> Histogram | None:
        """What was observed after ``earlier``; None if the buckets changed or the server started anew."""
        if self.bounds != earlier.bounds:
            return None
        counts = tuple(new - old for new, old in zip(self.cumulative, earlier.cumulative, strict=True))
        return None if min(counts) < 0 else Histogram(self.bounds, counts, self.total - earlier.total)

    def _bucket_of(self, percent: float) -> int | None:
        if self.count <= 0:
            return None
        rank = percent / 100 * self.count
        return next(place for place, reached in enumerate(self.cumulative) if reached >= rank and reached > 0)

    def _edges(self, place: int) -> tuple[float, float]:
        return (self.bounds[place - 1] if place else 0.0), self.bounds[place]


def histogram_of(buckets: Sequence[Sample], sums: Sequence[Sample]) -> Histogram | None:
    """Series of one histogram, added up: ``_bucket`` samples with their label ``le``, and ``_sum`` samples.

    None where there is no infinite bucket or the counts do not ascend: a page that was cut off. None, too, where a
    bound is no number.
    """
    counts: dict[float, float] = {}
    for sample in buckets:
        try:
            bound = float(sample.labels["le"])
        except (KeyError, ValueError):
            return None
        counts[bound] = counts.get(bound, 0.0) + sample.value
    bounds = tuple(sorted(counts))
    cumulative = tuple(counts[bound] for bound in bounds)
    if not bounds or bounds[-1] != math.inf or not all(math.isfinite(bound) for bound in bounds[:-1]):
        return None
    if any(later < earlier for earlier, later in pairwise(cumulative)):
        return None
    return Histogram(bounds, cumulative, sum(sample.value for sample in sums))
