"""What averages in closed form say beside a play: whether more replicas or fewer seats would keep the goal."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from kvplan.planner.choices.candidate import Candidate
from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.search.ranking import price_of

_NEARLY: Final = 1.05
"""What averages say of more replicas is played where it is so little beyond a bound."""


def tpot_to_keep(played: PlannedDeployment) -> float:
    """Seconds of TPOT on average in closed form that keep the goal, if averages miss the play by as much as here."""
    verdict, middle = played.verdict, played.served.middle
    assert middle is not None, "users are always kept up with"
    confidence = verdict.goal.confidence if verdict.goal.is_asked else 0.5
    seen = (each for each in verdict.seen if each.bound.name == "tpot")
    kept = (each.shrunk_to(confidence) / each.figure.middle for each in seen)
    return min((middle.tpot_seconds * share for share in kept), default=math.inf)


def would_keep(
    again: Candidate, found: Candidate, played: PlannedDeployment, share: float = 1.0, confidence: float | None = None
) -> bool:
    """Whether ``again`` keeps the goal if averages miss its play as they miss that of ``found``, or by a ``share`` of
    it. ``confidence``: None for what was asked."""
    if confidence is None:
        confidence = played.verdict.goal.confidence if played.verdict.goal.is_asked else 0.5
    for seen in played.verdict.seen:
        name = seen.bound.name
        missed = (seen.figure.middle / found.average(name)) ** share
        if again.average(name) * missed > seen.shrunk_to(confidence) * _NEARLY:
            return False
    return True


def cost_of_tokens(found: Candidate) -> float:
    """Dollars for requests by averages; infinite where nobody knows the price."""
    price = price_of(found.choice.gpu, found.num_gpus)
    middle = found.served.middle
    rate = 0.0 if middle is None else found.replicas * middle.requests_per_second
    return math.inf if rate == 0 or not price.is_known else price.amount / rate


def fewest(most: int, serves: Callable[[int], bool], least: int = 1) -> int | None:
    """The smallest number from ``least`` to ``most`` that serves: more replicas never serve less.

    It is mostly not far above ``least``, so that steps from there on double before the interval is halved.
    """
    if serves(least):
        return least
    if most <= least or not serves(most):
        return None
    low, step = least, 1
    while low + step < most and not serves(low + step):
        low, step = low + step, 2 * step
    high = min(low + step, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if serves(middle) else (middle, high)
    return high
