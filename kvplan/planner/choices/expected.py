"""What requests see on one replica: the played load, or averages in closed form where a load cannot be played."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvplan.catalog.published_errors import FigureName
from kvplan.estimate.speed.latency import Range
from kvplan.estimate.speed.queueing.figures import Distribution
from kvplan.estimate.speed.queues import Queues
from kvplan.planner.choices.load import LoadedReplica
from kvplan.planner.question.slo import SLO_FIELDS, Statistic

_COMPARED: Final[dict[str, FigureName]] = {"ttft": "ttft", "tpot": "tpot"}
"""Objectives whose figure was compared with published measurements."""


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
