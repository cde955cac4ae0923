"""What else is asked of a trace's fleet: prefill and decode apart, and replicas that come and go."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.errors import UsageError, check
from kvplan.fleet.apart.rules import HAND_OVERS
from kvplan.workload.part import parse_moment


@dataclass(frozen=True, slots=True)
class PolicyBounds:
    """What a user says of a replica policy. max_replicas: None for those of the fixed fleet, which is large enough at
    any time; cold_start_seconds: None for what is assumed."""

    min_replicas: int = 1
    max_replicas: int | None = None
    cold_start_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class FleetWishes:
    """hand_over: whose rules pools of prefill and decode follow, None where these are not asked for. scaling: None
    where the fleet is fixed."""

    hand_over: str | None = None
    scaling: PolicyBounds | None = None


def fleet_wishes(
    *,
    disaggregate: bool = False,
    hand_over: str | None = None,
    autoscale: bool = False,
    min_replicas: int | None = None,
    max_replicas: int | None = None,
    cold_start: str | None = None,
) -> FleetWishes:
    """Return what options of ``kvplan plan`` ask. UsageError for what cannot be, and for one without its purpose."""
    check(disaggregate or hand_over is None, "--hand-over needs --disaggregate", "it says whose rules pools follow")
    engine = (hand_over or "vllm").strip().casefold()
    if engine not in HAND_OVERS:
        raise UsageError(f"Unknown --hand-over '{hand_over}'.", hint="one of " + ", ".join(HAND_OVERS))
    given = {"--min-replicas": min_replicas, "--max-replicas": max_replicas, "--cold-start": cold_start}
    first = next((option for option, value in given.items() if value is not None), None)
    check(autoscale or first is None, f"{first} needs --autoscale", "a fleet has a fixed size otherwise")
    least = 1 if min_replicas is None else min_replicas
    check(least >= 1, f"--min-replicas must be at least 1, got {least}", "loading a model takes minutes")
    is_ordered = max_replicas is None or max_replicas >= least
    check(is_ordered, f"--max-replicas {max_replicas} is below --min-replicas {least}", f"use {least} or more")
    bounds = PolicyBounds(least, max_replicas, parse_moment("--cold-start", cold_start))
    return FleetWishes(engine if disaggregate else None, bounds if autoscale else None)
