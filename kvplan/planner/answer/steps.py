"""What the steps of a plan's deployment consist of."""

from __future__ import annotations

from kvplan.estimate.speed.queues import ExplainedStep, decode_step, mixed_step
from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.question.request import Workload


def explained_steps(deployment: PlannedDeployment, workload: Workload) -> list[ExplainedStep]:
    """A step that decodes for everybody, and one that reads a prompt too."""
    running, context = max(round(deployment.served.num_running), 1), workload.average_context
    model = deployment.speed_model
    return [decode_step(model, running, context), mixed_step(model, running, context)]
