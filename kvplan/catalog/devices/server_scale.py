"""What a user's own measurement says of a server: how much slower its kernels and its host are than predicted.

Both factors are believed as a normal distribution of their logarithms. ``kvplan.estimate.speed.own_point`` finds it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from kvplan.catalog.published_errors import ErrorInterval, FigureName

_OF_AN_END: Final = 1.6448536269514722
"""Standard deviations from the middle of a normal distribution to an end of what holds 9 in 10."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How much a figure's logarithm grows with that of the kernels' time, and with that of the host's."""

    kernels: float
    host: float


@dataclass(frozen=True, slots=True)
class Spread:
    """Standard deviations of log(measured / predicted): of any server, and from one load of a server to another."""

    whole: float = 0.0
    apart: float = 0.0


_NONE: Final = Spread()
_UNKNOWN: Final = 1e6


@dataclass(frozen=True, slots=True)
class ServerScale:
    """Factors of predicted times. The variances and the covariance are of their logarithms.

    ``ttft``, ``tpot``, ``throughput``: how far predictions without such factors are off. ``note``: what was measured,
    for people.
    """

    kernels: float = 1.0
    host: float = 1.0
    kernels_variance: float = 0.0
    host_variance: float = 0.0
    covariance: float = 0.0
    ttft: Spread = _NONE
    tpot: Spread = _NONE
    throughput: Spread = _NONE
    note: str = ""

    def of_another_layout(self) -> ServerScale:
        """The same factors, of which nobody knows how well they hold there: intervals are those without them."""
        return replace(self, kernels_variance=_UNKNOWN, host_variance=_UNKNOWN, covariance=0.0)

    def interval(self, figure: FigureName, by: Sensitivity) -> ErrorInterval:
        """Factors of a scaled prediction between which 9 in 10 measurements of this server lie.

        No wider than without the measurement.
        """
        known = by.kernels**2 * self.kernels_variance + by.host**2 * self.host_variance
        known += 2 * by.kernels * by.host * self.covariance
        spread = {"ttft": self.ttft, "tpot": self.tpot, "throughput": self.throughput}[figure]
        end = math.exp(_OF_AN_END * min(math.hypot(math.sqrt(max(known, 0.0)), spread.apart), spread.whole))
        return ErrorInterval(1 / end, end)


Sizes = tuple[int, int, int]
"""Tensor ranks, pipeline stages and data-parallel groups of an instance."""


@dataclass(frozen=True, slots=True)
class MeasuredServer:
    """A server that its user measured. ``speed_format``: that its products are in. ``scale``: what that said."""

    gpu_id: str
    sizes: Sizes
    speed_format: str
    scale: ServerScale

    def scale_for(self, gpu_id: str, sizes: Sizes, speed_format: str) -> ServerScale | None:
        """Return the scale of an instance like this one; on the same GPU its factors alone for any other; else None."""
        if gpu_id != self.gpu_id:
            return None
        is_alike = (sizes, speed_format) == (self.sizes, self.speed_format)
        return self.scale if is_alike else self.scale.of_another_layout()
