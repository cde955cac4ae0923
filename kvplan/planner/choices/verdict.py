"""How sure it is that a deployment serves its load as asked: what is expected beside the bounds of a goal."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, NamedTuple

from kvplan.catalog.published_errors import FigureName
from kvplan.estimate.speed.latency import Range
from kvplan.estimate.speed.queueing.figures import Distribution
from kvplan.estimate.speed.queues import Queues
from kvplan.planner.choices.load import LoadedReplica
from kvplan.planner.question.slo import SLO_FIELDS, Bound, Goal, Statistic

_COMPARED: Final[dict[str, FigureName]] = {"ttft": "ttft", "tpot": "tpot"}
"""Objectives whose figure was compared with published measurements."""
OF_AN_END: Final = 1.6448536269514722
"""Standard deviations from the middle of a normal distribution to an end of what holds 9 in 10."""


def share_at_most(figure: Figure, bound: float) -> float:
    """How likely a measurement is at most ``bound``, from 0 to 1.

    An interval holds 9 in 10 with 1 in 20 beyond each end. Between them figures are spread as a normal distribution of
    their logarithm, on each side of the middle as wide as its end says: errors of predictions are factors. What the
    data sheet excludes is impossible.
    """
    middle, ends = figure
    if not math.isfinite(middle) or bound < ends.least:
        return 0.0
    end = ends.high if bound >= middle else ends.low
    if not math.isfinite(end):
        return 0.5
    width, distance = math.log(end / middle), math.log(bound / middle)
    if width == 0.0:
        return 1.0 if bound >= middle else 0.0
    return 0.5 * (1 + math.copysign(math.erf(OF_AN_END * abs(distance / width) / 2**0.5), distance))


class ExpectedBound(NamedTuple):
    """A bound and what is expected of it. ``confidence``: that it is kept."""

    bound: Bound
    figure: Figure
    confidence: float

    def shrunk_to(self, confidence: float) -> float:
        """What the figure would have to be, in seconds, for the bound to be kept with ``confidence``."""
        middle, ends = self.figure
        if not math.isfinite(middle) or not math.isfinite(ends.high) or confidence <= 0.5:
            return self.bound.seconds
        deviations = NormalDist().inv_cdf(confidence) / OF_AN_END
        return self.bound.seconds * (middle / ends.high) ** deviations

    @property
    def ratio(self) -> float:
        """The middle over the bound: 1 at it, less within."""
        return self.figure.middle / self.bound.seconds


@dataclass(frozen=True, slots=True)
class Verdict:
    """``confidence``: that the load is served within every bound of ``goal``, the least of all that could fail: the
    times, whether the replica keeps up with a rate, and whether the KV pool holds the load."""

    goal: Goal
    seen: tuple[ExpectedBound, ...]
    confidence: float

    @staticmethod
    def of(goal: Goal, expected: Expected, others: Iterable[float], most: float = 1.0) -> Verdict:
        """Judge ``expected`` by ``goal``. ``others``: how sure the rest is; ``most``: how sure a bound is at best."""
        seen = []
        for bound in goal.slo.bounds():
            figure = expected.time(bound.name, bound.statistic)
            if figure is not None:
                seen.append(ExpectedBound(bound, figure, min(share_at_most(figure, bound.seconds), most)))
        asked = (each.confidence for each in seen if goal.is_asked)
        return Verdict(goal, tuple(seen), min([*others, *asked], default=1.0))

    @property
    def meets(self) -> bool:
        """Whether it is as sure as the goal asks. A readable speed is kept by the middle of what is expected."""
        return self.confidence >= self.goal.confidence and (self.goal.is_asked or self.broken is None)

    @property
    def possible(self) -> bool:
        """Whether the middle of what is expected keeps what was asked for."""
        return self.confidence >= 0.5

    @property
    def broken(self) -> ExpectedBound | None:
        """What is missed by most, by the middle of what is expected."""
        worst = max(self.seen, key=lambda each: each.ratio, default=None)
        return worst if worst is not None and worst.ratio > 1 else None

    @property
    def weakest(self) -> ExpectedBound | None:
        """The bound that is kept least surely."""
        return min(self.seen, key=lambda each: each.confidence, default=None)

    def misses_other_than(self, name: str) -> bool:
        """Whether a bound on another objective is kept less surely than asked."""
        return any(each.bound.name != name and each.confidence < self.goal.confidence for each in self.seen)

    @property
    def margin(self) -> float:
        """The largest ratio of a figure to its bound: the smaller, the more room."""
        return max((each.ratio for each in self.seen), default=0.0)


class Figure(NamedTuple):
    """A predicted figure, and between which ends 9 in 10 measurements of such predictions lie.

    ``middle``: infinite where a load is not kept up with.
    """

    middle: float
    between: Range


@dataclass(frozen=True, slots=True)
class Expected:
    """``queues``: None where the server's own work would fill its time, or requests pile up without end."""

    served: LoadedReplica
    queues: Queues | None

    def time(self, name: str, statistic: Statistic) -> Figure | None:
        """Seconds of the objective ``name``; None for a time per output token of answers that have one token."""
        if self.queues is None:
            return self._average(name, statistic)
        found = self._distribution(name, self.queues)
        if found is None:
            return None
        middle = found.at(statistic)
        figure = _COMPARED.get(name)
        ends = None if figure is None else self.queues.between(figure, middle, statistic)
        if ends is None:
            low, high = self._factors(name, statistic, self.queues)
            least = min(self.queues.bounds.e2el_seconds, middle) if name == "e2el" else 0.0
            ends = Range(max(middle * low, least), middle * high, least=least)
        return Figure(middle, ends)

    def output_tokens_per_second(self) -> Figure:
        """Throughput of the replica."""
        if self.queues is None:
            found = self.served.speed.output_tokens_per_second
            return Figure(found.middle, found)
        middle = self.queues.output_throughput
        ends = self.queues.between("throughput", middle)
        return Figure(middle, self.served.speed.output_tokens_per_second if ends is None else ends)

    @staticmethod
    def _distribution(name: str, queues: Queues) -> Distribution | None:
        figures = queues.figures
        return {"ttft": figures.ttft, "tpot": figures.tpot, "e2el": figures.e2el}[name]

    def _average(self, name: str, statistic: Statistic) -> Figure:
        """Return the average in closed form; of a tail nothing is known."""
        field = SLO_FIELDS[name]
        if self.served.middle is None or statistic not in ("mean", "p50"):
            return Figure(math.inf, Range(math.inf, math.inf))
        # The server's own work is added to each curve by itself: the middle's may be a millisecond beside the ends.
        middle, ends = getattr(self.served.middle, field), getattr(self.served.speed, field)
        return Figure(min(max(middle, ends.low), ends.high), ends)

    def _factors(self, name: str, statistic: Statistic, queues: Queues) -> tuple[float, float]:
        """Where nothing was compared, the ends of the averages around their middle.

        A whole request is its first token and the others: both intervals hold it.
        """
        names = ("ttft", "tpot") if name == "e2el" else (name,)
        known = (interval for each, interval in queues.intervals.items() if each in names)
        found = [interval.at(statistic) for interval in known if interval is not None]
        if len(found) == len(names):
            return min(each.low for each in found), max(each.high for each in found)
        middle, between = self._average(name, "mean")
        return between.low / middle, between.high / middle
