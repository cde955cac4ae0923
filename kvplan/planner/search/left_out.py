"""Why a GPU that was asked for is in none of a plan's deployments."""

from __future__ import annotations

from collections.abc import Mapping

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.planner.search.plan import PlanAnswer, nearest
from kvplan.planner.search.ranking import price_of, within_budget


def left_out(plan: PlanAnswer) -> Mapping[str, str]:
    """Return, by GPU id, a sentence for each GPU of the request without a deployment in the formats asked for."""
    served = {deployment.choice.gpu.id for deployment in plan.deployments}
    return {gpu.id: _why(plan, gpu) for gpu in plan.request.gpus if gpu.id not in served}


def _why(plan: PlanAnswer, gpu: GpuProfile) -> str:
    if gpu.id in plan.over_budget:
        return f"what serves the load costs more than ${plan.request.usd_per_hour:,.2f} per hour, or has no price."
    budget = plan.request.usd_per_hour
    if gpu.id in plan.unplayed and budget is not None and not within_budget(price_of(gpu, 1), budget):
        return f"one costs more than ${budget:,.2f} per hour, or has no price."
    if gpu.id in plan.unplayed:
        return "it costs more than what is shown, so that its load was not played (--gpu with it alone does that)."
    misses = [miss for miss in plan.misses if miss.choice.gpu.id == gpu.id]
    if misses:
        miss = nearest(misses)
        return miss.as_clause if miss.name == gpu.id else f"the nearest is {miss.name}. {miss.sentence}"
    refusal = plan.refusals.get(gpu.id)
    if refusal is not None:
        return str(refusal) if refusal.hint is None or "--engine" not in refusal.hint else f"{refusal} {refusal.hint}"
    return "the model cannot be divided over so few of them."
