"""When requests arrive whose times nobody has said: gamma-distributed gaps, of which 1 is a Poisson process."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvplan.errors import UsageError

if TYPE_CHECKING:
    import numpy as np


def drawn_arrivals(rate: float, burstiness: float, count: int, rng: np.random.Generator) -> list[float]:
    """``count`` times, ascending: the first after a gap, the last of n at n / rate whatever the seed.

    The scaling keeps the offered rate the same for every seed, as vLLM's benchmark does (get_request, 0.33).
    burstiness: shape of the gaps' distribution; less is burstier, infinity is equal gaps. UsageError where it is so low
    that all gaps are 0.
    """
    if math.isinf(burstiness):
        return [place / rate for place in range(1, count + 1)]
    times = rng.gamma(shape=burstiness, scale=1.0 / (rate * burstiness), size=count).cumsum()
    last = float(times[-1]) if count else 1.0
    stretch = count / rate / last if last > 0 else math.inf
    if not math.isfinite(stretch):
        raise UsageError(
            f"A burstiness of {burstiness:g} is too low: all {count:,} requests would arrive at one moment.",
            hint="use a larger one, such as 0.1",
        )
    return [float(seconds) for seconds in times * stretch]
