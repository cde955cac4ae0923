"""What one result of a user's own server says of all its loads: a factor of its kernels' time, and one of its host's.

A prediction is off for reasons that a server has under each load (its kernels, its clock, its host), and for others
that change with the load. With k and h, the logarithms of both factors, a figure f of a load is

    log measured = log predicted(k, h) + e        k ~ N(0, r(TPOT) t(TPOT)^2), h ~ N(0, r(TTFT) t(TTFT)^2),
                                                  e ~ N(0, (1 - r(f)) t(f)^2)

t(f) is how far such predictions are off: the root of the mean square that the published interval of their kind has
(``published_errors``). r(f) is the share of that variance which loads of one server have in common (the intraclass
correlation), ``COMMON``. k and h are where the posterior is densest; its covariance there, and e again, are the
interval of the next load. That is the best predictor of a linear mixed model, or credibility (Robinson, That BLUP Is a
Good Thing, Statistical Science 6, 1991; Buehlmann, Experience Rating and Credibility, ASTIN Bulletin 4, 1967). How a
figure depends on both factors says a play of its load with slightly slower kernels, and with a slightly slower host.
So one result moves each factor as far as its figures depend on it; results of other loads tell them apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from kvplan.catalog.devices.server_scale import ServerScale, Spread
from kvplan.catalog.published_errors import ErrorInterval, FigureName
from kvplan.estimate.speed.latency import SpeedModel
from kvplan.estimate.speed.queueing.figures import PlayedFigures, Statistic
from kvplan.estimate.speed.queueing.loads import PlayedLoad
from kvplan.estimate.speed.queueing.play import play
from kvplan.estimate.speed.queueing.rules import SchedulingRules

COMMON: Final[Mapping[FigureName, float]] = {"ttft": 0.53, "tpot": 0.63, "throughput": 0.62}
"""Of the variance of errors, the share that the loads of one server have in common: by an analysis of variance of
published rows, servers of two rows and more (``tools/score_own_point.py``)."""
_NOTHING_COMPARED: Final = ErrorInterval(1 / 3, 3.0)
_OF_AN_END: Final = 1.6448536269514722
_STEP: Final = 0.1
_ROUNDS: Final = 3


class MeasuredFigure(NamedTuple):
    """Seconds, or output tokens per second of one instance."""

    statistic: Statistic
    value: float


@dataclass(frozen=True)
class OwnPoint:
    """One result: a load that was sent to one instance, and what was measured."""

    model: SpeedModel
    load: PlayedLoad
    rules: SchedulingRules
    measured: Mapping[FigureName, MeasuredFigure]

    def figures(self, scale: ServerScale) -> dict[FigureName, float]:
        """Predicted, by name: those that were measured."""
        model = replace(self.model, scale=scale)
        played = play(self.load, model.followed(self.rules), model.steps)
        return {name: found for name, (at, _) in self.measured.items() if (found := figure_of(played, name, at))}

    @property
    def telling(self) -> tuple[FigureName, ...]:
        """Figures that say something of their own: a throughput follows from both times where these are known."""
        times: tuple[FigureName, ...] = ("ttft", "tpot")
        return tuple(each for each in self.measured if each in times or len(self.measured) < len(times) + 1)


def figure_of(played: PlayedFigures, name: FigureName, at: Statistic) -> float | None:
    """Seconds or tokens per second; None for a time per output token of answers that have one token."""
    if name == "throughput":
        return played.output_throughput
    found = played.ttft if name == "ttft" else played.tpot
    return None if found is None else found.at(at)


def spread_of(interval: ErrorInterval | None) -> float:
    """The root of the mean square of log(measured / predicted), of which ``interval`` holds 9 in 10."""
    low, high = (math.log(end) for end in ((interval or _NOTHING_COMPARED).low, (interval or _NOTHING_COMPARED).high))
    return math.hypot((high - low) / 2 / _OF_AN_END, (high + low) / 2)


def scale_of(points: Sequence[OwnPoint], common: Mapping[FigureName, float] = COMMON) -> ServerScale:
    """What ``points`` say, of one server; there is at least one."""
    belief = _Belief.of(points[0].model, common)
    scale = belief.scale(0.0, 0.0)
    for _ in range(_ROUNDS):
        scale = _moved(points, belief, scale)
    return scale


@dataclass(frozen=True, slots=True)
class _Belief:
    """Before anything is measured. ``kernels``, ``host``: variances of logarithms."""

    kernels: float
    host: float
    spreads: Mapping[FigureName, Spread]

    @staticmethod
    def of(model: SpeedModel, common: Mapping[FigureName, float]) -> _Belief:
        before = replace(model, scale=None)
        spreads: dict[FigureName, Spread] = {}
        for name, share in common.items():
            whole = spread_of(before.error_interval(name))
            spreads[name] = Spread(whole, math.sqrt(1 - share) * whole)
        kernels, host = common["tpot"] * spreads["tpot"].whole ** 2, common["ttft"] * spreads["ttft"].whole ** 2
        return _Belief(kernels, host, spreads)

    def scale(self, kernels: float, host: float, covariance: tuple[float, float, float] | None = None) -> ServerScale:
        """From logarithms. ``covariance``: variance of the kernels', of the host's, and of both."""
        of_kernels, of_host, of_both = covariance or (self.kernels, self.host, 0.0)
        return ServerScale(
            kernels=math.exp(kernels),
            host=math.exp(host),
            kernels_variance=of_kernels,
            host_variance=of_host,
            covariance=of_both,
            ttft=self.spreads["ttft"],
            tpot=self.spreads["tpot"],
            throughput=self.spreads["throughput"],
        )


def _moved(points: Sequence[OwnPoint], belief: _Belief, at: ServerScale) -> ServerScale:
    """One step of Gauss and Newton towards the densest place of the posterior."""
    kernels, host = math.log(at.kernels), math.log(at.host)
    # Precision [[a, b], [b, c]] and the gradient of the logarithm of the density.
    a, b, c = 1 / belief.kernels, 0.0, 1 / belief.host
    along_kernels, along_host = -kernels / belief.kernels, -host / belief.host
    for point in points:
        now = point.figures(at)
        by_kernels = point.figures(replace(at, kernels=at.kernels * math.exp(_STEP)))
        by_host = point.figures(replace(at, host=at.host * math.exp(_STEP)))
        for name in point.telling:
            if name not in now:
                continue
            missing = math.log(point.measured[name].value / now[name])
            one, two = (math.log(each[name] / now[name]) / _STEP for each in (by_kernels, by_host))
            weight = belief.spreads[name].apart ** -2
            a, b, c = a + weight * one * one, b + weight * one * two, c + weight * two * two
            along_kernels += weight * one * missing
            along_host += weight * two * missing
    det = a * c - b * b
    moved = kernels + (c * along_kernels - b * along_host) / det, host + (a * along_host - b * along_kernels) / det
    return belief.scale(*moved, (c / det, a / det, -b / det))
