"""When requests are due, in seconds from the start of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from kvplan.errors import UsageError
from kvplan.workload.requests import ALL_AT_ONCE, LOWEST_RATE, POISSON, drawn_arrivals

CONSTANT: Final = math.inf
"""The burstiness of equal gaps."""
_HINT: Final = "write 4, or 1..8 for a rate that grows from 1 to 8 requests per second"


@dataclass(frozen=True, slots=True)
class Rate:
    """Arrivals per second: constant on average, or from ``first`` to ``last`` in a straight line over the run."""

    first: float = ALL_AT_ONCE
    last: float = ALL_AT_ONCE

    @staticmethod
    def parse(text: str) -> Rate:
        """``4``, ``0.5..8`` or ``inf``. UsageError otherwise."""
        try:
            ends = [float(part) for part in text.split("..")]
        except ValueError:
            ends = []
        if not 1 <= len(ends) <= 2 or not all(end >= LOWEST_RATE for end in ends):
            raise UsageError(f"--request-rate '{text}' is not a rate.", hint=_HINT)
        if len(ends) == 2 and math.inf in ends:
            raise UsageError(f"--request-rate '{text}' has no end.", hint=_HINT)
        return Rate(ends[0], ends[-1])

    @property
    def is_ramp(self) -> bool:
        return self.first != self.last

    @property
    def is_all_at_once(self) -> bool:
        return math.isinf(self.first)

    @property
    def mean(self) -> float:
        """Over the time of a run: (first + last) / 2."""
        return (self.first + self.last) / 2

    def as_text(self) -> str:
        return f"{self.first:g}..{self.last:g}" if self.is_ramp else f"{self.first:g}"


UNLIMITED: Final = Rate()
"""All at once."""


def arrival_times(
    rate: Rate, burstiness: float, count: int, seed: int, duration_seconds: float | None = None
) -> list[float]:
    """``count`` times, ascending; the last of n at a constant mean rate comes at n / rate for every seed.

    burstiness: shape of the gamma-distributed gaps, 1 is Poisson, less is burstier, CONSTANT equal gaps. A ramp
    stretches the same pattern so that the rate at each moment lies on the line, which ends after ``duration_seconds``:
    by default with the last arrival. UsageError for a burstiness so low that all come at once.
    """
    if rate.is_all_at_once or count < 1:
        return [0.0] * count
    import numpy as np

    unit = drawn_arrivals(1.0, burstiness, count, np.random.default_rng([seed, 1]))
    return [_stretched(place, rate, duration_seconds or count / rate.mean) for place in unit]


def _stretched(place: float, rate: Rate, seconds: float) -> float:
    """The time at which ``place`` arrivals are due in a run of ``seconds``: the inverse of the integral of the rate."""
    if not rate.is_ramp:
        return place / rate.first
    slope = (rate.last - rate.first) / seconds
    # first t + slope t^2 / 2 = place
    return 2 * place / (rate.first + math.sqrt(max(0.0, rate.first**2 + 2 * slope * place)))


def arrivals_text(rate: Rate, burstiness: float) -> str:
    """``4 requests/s (Poisson)``, ``1 to 8 requests/s at equal gaps``."""
    if rate.is_all_at_once:
        return "all at once"
    numbers = f"{rate.first:g} to {rate.last:g} requests/s" if rate.is_ramp else f"{rate.first:g} requests/s"
    if math.isinf(burstiness):
        return f"{numbers} at equal gaps"
    return f"{numbers} (Poisson)" if burstiness == POISSON else f"{numbers} (burstiness {burstiness:g})"
