"""Cost against latency: every deployment that was played, and those of them that nothing beats in both."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.search.plan import PlanAnswer


@dataclass(frozen=True, slots=True)
class Offer:
    """A deployment by what it costs and how long a request takes on average. is_best: the answer; stands_out: nothing
    that costs as little is as fast."""

    deployment: PlannedDeployment
    cost: float
    seconds: float
    is_best: bool
    stands_out: bool


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """offers: from cheap to dear. has_prices: costs are dollars per hour, of priced deployments alone; else GPUs."""

    offers: tuple[Offer, ...]
    has_prices: bool

    @property
    def unit(self) -> str:
        """Unit of costs."""
        return "dollars per hour" if self.has_prices else "GPUs"


def tradeoff(plan: PlanAnswer) -> Tradeoff:
    """Return that of what serves the load, in the formats asked for and in others."""
    everything = [*plan.deployments, *(each.deployment for each in plan.alternatives)]
    priced = [each for each in everything if each.usd_per_hour is not None]
    shown = priced or everything
    points = [(each.usd_per_hour or float(each.num_gpus), _request_seconds(each)) for each in shown]
    offers = [
        Offer(
            each,
            cost,
            seconds,
            each is plan.deployments[0],
            not any(left <= cost and below < seconds for left, below in points),
        )
        for (cost, seconds), each in zip(points, shown, strict=True)
    ]
    return Tradeoff(tuple(sorted(offers, key=lambda each: (each.cost, each.seconds))), bool(priced))


def _request_seconds(deployment: PlannedDeployment) -> float:
    found = deployment.expected.time("e2el", "mean")
    assert found is not None, "every request takes some time"
    return found.middle
