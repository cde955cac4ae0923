"""A plan's load on one replica of a deployment: what its requests see, and what the steps consist of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvplan.estimate.speed.queues import ExplainedStep, Queues, decode_step, mixed_step
from kvplan.planner.choices.deployment import Deployment
from kvplan.planner.choices.played import Replica
from kvplan.planner.choices.slo_check import missed_by_tail
from kvplan.planner.question.request import Workload
from kvplan.planner.question.slo import Slo

MOST_PLAYED: Final = 20
"""Deployments, the best first, whose queues are played."""


def queues_of(deployment: Deployment, workload: Workload) -> Queues | None:
    """Of one of its replicas; None as for ``Replica.play``."""
    replica = Replica(
        workload,
        deployment.choice,
        deployment.replicas,
        deployment.prediction,
        deployment.capacity,
        deployment.speed_model,
    )
    return replica.play(deployment.served)


def first_within_tails(deployments: Sequence[Deployment], workload: Workload, slo: Slo) -> Deployment | None:
    """The first that keeps ``slo`` for 99 in 100 requests, by the middle of the prediction; None of those played."""
    for each in deployments[:MOST_PLAYED]:
        found = queues_of(each, workload)
        if found is not None and not missed_by_tail(slo, found.figures):
            return each
    return None


def explained_steps(deployment: Deployment, workload: Workload) -> list[ExplainedStep]:
    """A step that decodes for everybody, and one that reads a prompt too."""
    running, context = max(round(deployment.served.num_users), 1), workload.average_context
    model = deployment.speed_model
    return [decode_step(model, running, context), mixed_step(model, running, context)]
