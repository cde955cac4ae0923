"""The drafter of a plan's model on one choice, and how many of its tokens are accepted."""

from __future__ import annotations

from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speculation import draft_work
from kvplan.estimate.speed.queueing.drafting import Drafting
from kvplan.estimate.vllm.drafters import drafter_weight_bytes
from kvplan.estimate.vllm.prediction import VllmPrediction, cache_settings
from kvplan.planner.choices.deployment import DeploymentChoice
from kvplan.planner.question.request import PlanRequest, Workload


def drafter_bytes(choice: DeploymentChoice, prediction: VllmPrediction) -> int:
    """Return the bytes of the drafter's weights among those of a rank; 0 without one."""
    spec, settings = choice.weights.spec, prediction.settings.serving
    if spec.drafter is None:
        return 0
    return drafter_weight_bytes(spec, spec.drafter, choice.layout, settings.dtype, settings.max_model_len)


def drafting_of(
    request: PlanRequest, workload: Workload, choice: DeploymentChoice, prediction: VllmPrediction
) -> Drafting | None:
    """None without a drafter."""
    spec, settings, rate = choice.weights.spec, prediction.settings.serving, request.settings.acceptance_rate
    if spec.drafter is None:
        return None
    assert rate is not None, "asked for with the drafter"
    weights, cache = drafter_bytes(choice, prediction), cache_settings(spec, settings)
    layout: ParallelLayout = choice.layout
    return Drafting(draft_work(spec, spec.drafter, weights, cache, layout, workload.average_context), rate)
