"""The drafter that a plan is asked to serve a model with."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from kvplan.catalog.spec import ModelSpec
from kvplan.catalog.speculation.reading import with_speculation
from kvplan.errors import UsageError
from kvplan.planner.question.request import PlanRequest


class WithDrafter(NamedTuple):
    """A model with its drafter, and the request with as many draft tokens as it makes."""

    spec: ModelSpec
    request: PlanRequest


def with_drafter(spec: ModelSpec, request: PlanRequest) -> WithDrafter:
    """Both as they are where no drafter is asked for. UsageError without an acceptance rate, which no config tells."""
    found = with_speculation(spec, request.settings)
    if found.spec.drafter is not None and found.settings.acceptance_rate is None:
        raise UsageError(
            "A plan with a drafter needs --acceptance-rate: it depends on drafter, task and temperature.",
            hint="for example --acceptance-rate 0.7, the chance that a draft token is accepted after those before it",
        )
    return WithDrafter(found.spec, replace(request, settings=found.settings))
