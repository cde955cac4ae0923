"""What a deployment costs: per hour, per million tokens, and against an API that is paid by the token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.question.prices import ApiPrice


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Renting against an API. Ranges are (at the slowest, at the fastest of the predicted speeds).

    ``api_usd_per_hour``: for the tokens that the deployment serves in an hour. ``requests_per_hour``: from so many on
    renting is cheaper, as long as the deployment serves them. ``share_of_load``: how much that is of what it serves.
    """

    usd_per_hour: float
    api_usd_per_hour: tuple[float, float]
    requests_per_hour: float
    share_of_load: tuple[float, float]

    @property
    def cheaper(self) -> str:
        """What is cheaper for this load: ``renting``, ``api``, or ``unsure`` where the range of speeds has both."""
        slow, fast = self.share_of_load
        if slow <= 1:
            return "renting"
        return "api" if fast > 1 else "unsure"


def break_even(deployment: PlannedDeployment, api: ApiPrice | None) -> BreakEven | None:
    """None without a price of either."""
    rent = deployment.usd_per_hour
    if rent is None or api is None:
        return None
    model = deployment.speed_model
    each = api.usd_per_request(model.input_tokens, model.output_tokens)
    ends = deployment.output_tokens_per_second.between
    slow, fast = (tokens * 3600 / model.output_tokens for tokens in (ends.low, ends.high))
    return BreakEven(rent, (each * slow, each * fast), rent / each, (rent / (each * slow), rent / (each * fast)))


def break_even_text(deployment: PlannedDeployment, api: ApiPrice | None) -> str | None:
    """One sentence, without the figure's name in front."""
    found = break_even(deployment, api)
    if found is None or api is None:
        return None
    slow, fast = found.api_usd_per_hour
    verdict = {
        "renting": "renting is cheaper for this load",
        "api": "the API is cheaper for this load",
        "unsure": "which one is cheaper depends on the speed that is reached",
    }[found.cheaper]
    ends = tuple(f"{100 * share:,.0f}" for share in reversed(found.share_of_load))
    shares = ends[0] if ends[0] == ends[1] else "-".join(ends)
    return (
        f"at ${api.usd_per_million_input:g} in and ${api.usd_per_million_output:g} out per million tokens the same "
        f"tokens cost {_dollars(slow, fast)} per hour: {verdict}. Renting pays from {found.requests_per_hour:,.0f} "
        f"requests per hour on, which is {shares} % of what is served here"
    )


def _dollars(low: float, high: float) -> str:
    ends = f"{low:,.2f}", f"{high:,.2f}"
    return f"${ends[0]}" if ends[0] == ends[1] else f"${ends[0]}-{ends[1]}"


def cost_document(deployment: PlannedDeployment, api: ApiPrice | None = None) -> dict[str, Any] | None:
    """None where no price is known. Ranges begin with the cheapest: the fastest of the predicted speeds."""
    gpu, output, every = (
        deployment.choice.gpu,
        deployment.usd_per_million_output_tokens(),
        deployment.usd_per_million_tokens(),
    )
    if gpu.price is None or output is None or every is None or deployment.usd_per_hour is None:
        return None
    against = break_even(deployment, api)
    return {
        "usd_per_hour": round(deployment.usd_per_hour, 2),
        "usd_per_million_output_tokens": _rounded(output),
        "usd_per_million_tokens": _rounded(every),
        "price_date": gpu.price.date,
        "price_source": gpu.price.source,
        "instance": gpu.rented_as,
        "num_instances": None if gpu.rented_as is None else deployment.num_nodes,
        "api": None
        if against is None
        else {
            "usd_per_hour": _rounded(against.api_usd_per_hour),
            "cheaper": against.cheaper,
            "break_even_requests_per_hour": round(against.requests_per_hour, 1),
            "break_even_share_of_load": _rounded((against.share_of_load[1], against.share_of_load[0])),
        },
    }


def cost_columns(cost: dict[str, Any] | None) -> dict[str, Any]:
    """The same as cells of a row, whose names do not depend on what is known."""
    cost = cost or {}
    unknown = (None, None)
    ends: dict[str, Any] = {
        "usd_per_million_output_tokens": cost.get("usd_per_million_output_tokens", unknown),
        "usd_per_million_tokens": cost.get("usd_per_million_tokens", unknown),
        "api_usd_per_hour": (cost.get("api") or {}).get("usd_per_hour", unknown),
    }
    return {
        "usd_per_hour": cost.get("usd_per_hour"),
        **{f"{name}_{end}": each[index] for name, each in ends.items() for index, end in enumerate(("low", "high"))},
    }


def _rounded(ends: tuple[float, float]) -> list[float]:
    return [round(ends[0], 3), round(ends[1], 3)]
