"""Predicted speeds against service levels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from kvplan.catalog.published_errors import FigureName
from kvplan.estimate.speed.latency import Range
from kvplan.estimate.speed.queueing.figures import Distribution, PlayedFigures
from kvplan.estimate.speed.queues import Queues
from kvplan.planner.choices.load import Served, share_within
from kvplan.planner.question.slo import SLO_FIELDS, Bound, Slo


class Predicted(NamedTuple):
    """What a bound is compared with, in seconds. ``middle``: infinite where a load is not kept up with."""

    bound: Bound
    middle: float
    between: Range

    @property
    def excess(self) -> float:
        """By what share the middle is beyond the bound; negative within it."""
        return self.middle / self.bound.seconds - 1

    @property
    def share(self) -> float:
        """How much of the range is within the bound; without an upper end all of it that is possible."""
        if self.between.low > self.bound.seconds:
            return 0.0
        return share_within(self.between, self.bound.seconds) if self.between.is_bounded else 1.0


@dataclass(frozen=True, slots=True)
class SloCheck:
    """A predicted speed against the bounds. ``possible``: by the middle of the range; ``sure``: by its high end.

    ``broken`` is the bound that is missed by most, with what was predicted of it, and ``excess`` by what share.
    ``share``: how much of the range of speeds keeps every bound and keeps up with the load, and of the range of KV
    pools holds it.
    """

    possible: bool
    sure: bool
    broken: Predicted | None
    num_bounds: int
    share: float = 1.0

    @property
    def excess(self) -> float:
        return 0.0 if self.broken is None else self.broken.excess


def check_averages(slo: Slo, served: Served) -> SloCheck:
    """Compare the averages with their bounds. A load that the replica does not keep up with breaks every bound.

    An average beyond the bound of a 99th percentile breaks it too, but only bounds of averages decide what is sure.
    """
    asked = [bound for bound in slo.bounds() if bound.statistic in ("mean", "p99")]
    seen = [Predicted(bound._replace(statistic="mean"), *_average(bound, served)) for bound in asked]
    shares = (each.share for each, bound in zip(seen, asked, strict=True) if bound.statistic == "mean")
    return _check(slo, seen, min([served.share, *shares]), served)


def check_percentiles(check: SloCheck, slo: Slo, served: Served, queues: Queues | None) -> SloCheck:
    """``check`` of the averages, and the percentiles of a played load against theirs.

    Without a play (the server's own work would fill its time) every bound of a percentile counts as broken.
    """
    asked = [bound for bound in slo.bounds() if bound.statistic != "mean"]
    if not asked:
        return check
    seen = [each for bound in asked if (each := _percentile(bound, served, queues)) is not None]
    return _check(slo, seen, min([check.share, *(each.share for each in seen)]), served)


def _check(slo: Slo, seen: Iterable[Predicted], share: float, served: Served) -> SloCheck:
    worst = max(seen, key=lambda each: each.excess, default=None)
    broken = worst if worst is not None and worst.excess > 0 else None
    return SloCheck(broken is None and served.keeps_up, share >= 1.0, broken, len(slo.bounds()), share)


def _average(bound: Bound, served: Served) -> tuple[float, Range]:
    field = SLO_FIELDS[bound.name]
    return math.inf if served.middle is None else getattr(served.middle, field), getattr(served.speed, field)


_COMPARED: Final[dict[str, FigureName]] = {"ttft": "ttft", "tpot": "tpot"}
"""Bounds whose figure was compared with published measurements."""


def _percentile(bound: Bound, served: Served, queues: Queues | None) -> Predicted | None:
    """None for a time per output token of answers that have one token."""
    if queues is None:
        return Predicted(bound, math.inf, Range(math.inf, math.inf))
    found = played(queues.figures)[bound.name]
    if found is None:
        return None
    middle = found.at(bound.statistic)
    figure = _COMPARED.get(bound.name)
    ends = None if figure is None else queues.between(figure, middle)
    if ends is not None:
        return Predicted(bound, middle, ends)
    low, high = _factors(bound, served, queues)
    least = min(queues.bounds.e2el_seconds, middle) if bound.name == "e2el" else 0.0
    return Predicted(bound, middle, Range(max(middle * low, least), middle * high))


def _factors(bound: Bound, served: Served, queues: Queues) -> tuple[float, float]:
    """Between which 9 in 10 measurements lie; where nothing was compared, the ends of the averages around their middle.

    A whole request is its first token and the others: both intervals hold it.
    """
    names = ("ttft", "tpot") if bound.name == "e2el" else (bound.name,)
    found = [interval for name, interval in queues.intervals.items() if name in names and interval is not None]
    if len(found) == len(names):
        return min(each.low for each in found), max(each.high for each in found)
    middle, between = _average(bound, served)
    return between.low / middle, between.high / middle


def played(figures: PlayedFigures) -> dict[str, Distribution | None]:
    """By objective."""
    return {"ttft": figures.ttft, "tpot": figures.tpot, "e2el": figures.e2el}


class TailMiss(NamedTuple):
    """A bound of an average that the 99th percentile of a played load is beyond."""

    bound: Bound
    p99_seconds: float


def missed_by_tail(slo: Slo, figures: PlayedFigures) -> tuple[TailMiss, ...]:
    """Of averages that are within their bounds: of a load with queues 1 request in 100 sees more than these."""
    found = []
    for bound in slo.bounds():
        seen = played(figures)[bound.name]
        if bound.statistic == "mean" and seen is not None and seen.p99 > bound.seconds:
            found.append(TailMiss(bound, seen.p99))
    return tuple(found)


def within_pool(check: SloCheck, share: float) -> SloCheck:
    """``check`` where only a ``share`` of the likely KV pools holds the load: sure only if all of them do."""
    return replace(check, sure=check.sure and share >= 1.0, share=min(check.share, share))
