"""Which of two deployments is the better answer."""

from __future__ import annotations

from typing import NamedTuple

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.planner.choices.deployment import PlannedDeployment, paid_gpus


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
