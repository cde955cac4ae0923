"""What a deployment's drafter yields, in a sentence and as JSON."""

from __future__ import annotations

from typing import Any

from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.units import plural


def drafting_document(deployment: PlannedDeployment) -> dict[str, Any] | None:
    """None without a drafter."""
    drafter, drafting = deployment.choice.weights.spec.drafter, deployment.speed_model.drafting
    if drafter is None or drafting is None:
        return None
    return {
        "method": drafter.method,
        "model": None if drafter.model is None else drafter.name,
        "num_speculative_tokens": drafter.num_tokens,
        "acceptance_rate": drafting.acceptance_rate,
        "tokens_per_step": round(drafting.tokens_per_step, 3),
    }


def drafting_sentence(deployment: PlannedDeployment) -> str | None:
    """``mtp, 1 draft token a step, accepted with a chance of 80 %: 1.80 tokens a step``; None without a drafter."""
    drafter, drafting = deployment.choice.weights.spec.drafter, deployment.speed_model.drafting
    if drafter is None or drafting is None:
        return None
    return (
        f"{drafter.method}, {plural(drafter.num_tokens, 'draft token')} a step, accepted with a chance of "
        f"{100 * drafting.acceptance_rate:g} % each: {drafting.tokens_per_step:.2f} tokens a step. No published "
        "measurement was compared with such times, and how many are accepted depends on the task"
    )
