"""Predicted speeds against service levels."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from kvplan.estimate.speed.latency import Range
from kvplan.estimate.speed.queueing.figures import PlayedFigures
from kvplan.planner.choices.load import Served, share_within
from kvplan.planner.question.slo import SLO_FIELDS, Slo


@dataclass(frozen=True, slots=True)
class SloCheck:
    """A predicted speed against the bounds. ``possible``: by the middle of the range; ``sure``: by its high end.

    ``broken`` names the bound that is missed by most, ``excess`` by what share. ``share``: how much of the range of
    speeds keeps every bound and keeps up with the load, and of the range of KV pools holds it.
    """

    possible: bool
    sure: bool
    broken: str | None
    excess: float
    num_bounds: int
    share: float = 1.0


def check_slo(slo: Slo, served: Served) -> SloCheck:
    """Compare the speeds with the bounds. A load that the replica does not keep up with breaks every bound."""
    excess, broken, share = 0.0, None, served.share
    for name, field in SLO_FIELDS.items():
        bound = getattr(slo, field)
        if bound is None:
            continue
        predicted: Range = getattr(served.speed, field)
        middle = math.inf if served.middle is None else getattr(served.middle, field)
        share = min(share, share_within(predicted, bound)) if predicted.is_bounded else share
        if predicted.low > bound:
            share = 0.0
        if middle / bound - 1 > excess:
            excess, broken = middle / bound - 1, name
    bounds = sum(getattr(slo, field) is not None for field in SLO_FIELDS.values())
    return SloCheck(broken is None and served.keeps_up, share >= 1.0, broken, excess, bounds, share)


class TailMiss(NamedTuple):
    """A bound that the 99th percentile of a played load is beyond. Seconds."""

    name: str
    p99_seconds: float
    bound_seconds: float


def missed_by_tail(slo: Slo, figures: PlayedFigures) -> tuple[TailMiss, ...]:
    """``check_slo`` compares averages; of a load with queues 1 request in 100 sees more than these."""
    played = {"ttft": figures.ttft, "tpot": figures.tpot, "e2el": figures.e2el}
    found = []
    for name, field in SLO_FIELDS.items():
        bound, seen = getattr(slo, field), played[name]
        if bound is not None and seen is not None and seen.p99 > bound:
            found.append(TailMiss(name, seen.p99, bound))
    return tuple(found)


def within_pool(check: SloCheck, share: float) -> SloCheck:
    """``check`` where only a ``share`` of the likely KV pools holds the load: sure only if all of them do."""
    return replace(check, sure=check.sure and share >= 1.0, share=min(check.share, share))
