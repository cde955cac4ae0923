"""Which of two deployments is the better answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.planner.choices.candidate import Candidate
from kvplan.planner.choices.deployment import PlannedDeployment, paid_gpus

_NEARLY: Final = 1.05
"""What averages say of more replicas is played where it is so little beyond a bound."""


class Price(NamedTuple):
    """What a deployment costs, in order: dollars per hour, or without any known price its number of GPUs.

    What has no price is never cheaper than what has one.
    """

    is_unknown: bool
    amount: float

    @property
    def is_known(self) -> bool:
        return not self.is_unknown


def price_of(gpu: GpuProfile, num_gpus: int) -> Price:
    """Return the price of so many. Rounded to a hundredth of a cent, so that equal sums are equal."""
    if gpu.price is None:
        return Price(True, float(num_gpus))
    return Price(False, round(gpu.price.usd_per_hour * paid_gpus(gpu, num_gpus), 4))


def within_budget(price: Price, usd_per_hour: float | None) -> bool:
    """Whether it costs at most so much; without a price nobody knows, so it does not count as cheap."""
    return usd_per_hour is None or (price.is_known and price.amount <= usd_per_hour)


def rank(deployment: PlannedDeployment) -> tuple[object, ...]:
    """What serves the load as asked, then the cheapest as a whole, then the fastest, then few and small GPUs.

    Of what costs the same, what has a seat for everybody comes first, and the fastest is what has the most room within
    the bounds that were asked for, or else what answers a request soonest. Of what is slower than anybody reads, the
    cheapest tokens come first.
    """
    verdict, price = deployment.verdict, price_of(deployment.choice.gpu, deployment.num_gpus)
    if not verdict.meets and not verdict.goal.is_asked:
        return (True, price.is_unknown, _dollars_per_token(deployment, price), deployment.num_gpus)
    gpu_bytes = deployment.num_gpus * deployment.choice.gpu.memory_bytes
    return (not verdict.meets, *price, deployment.waits, round(score(deployment), 4), deployment.num_gpus, gpu_bytes)


def score(deployment: PlannedDeployment) -> float:
    """The smaller the faster: the largest ratio to a bound that was asked for, or else seconds of a request.

    Where some wait for a seat it is seconds: as few seats as give the most room within a bound would help nobody.
    """
    if deployment.verdict.goal.is_asked and not deployment.waits:
        return deployment.verdict.margin
    whole = deployment.expected.time("e2el", "mean")
    assert whole is not None, "every request takes some time"
    return whole.middle


def _dollars_per_token(deployment: PlannedDeployment, price: Price) -> float:
    return price.amount / max(deployment.output_tokens_per_second.middle, 1e-9)


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
