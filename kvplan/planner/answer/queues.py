"""A plan's load on one replica of a deployment: what its requests see, and what the steps consist of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kvplan.catalog.engines import EngineChoice
from kvplan.estimate.speed.engine_speed import engine_rules
from kvplan.estimate.speed.queueing.loads import PlayedLoad, steady_rate, steady_users
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.queues import ExplainedStep, Queues, decode_step, mixed_step, play_queues
from kvplan.planner.choices.deployment import Deployment
from kvplan.planner.choices.load import Served
from kvplan.planner.choices.slo_check import missed_by_tail
from kvplan.planner.question.request import Workload
from kvplan.planner.question.slo import Slo

MOST_PLAYED: Final = 20
"""Deployments, the best first, whose queues are played."""


def queues_of(deployment: Deployment, workload: Workload) -> Queues | None:
    """None where the replica does not keep up with its load (the queue grows for ever), and as for ``play_queues``."""
    middle = deployment.served.middle
    if middle is None:
        return None
    load, rules, model = _load(deployment, workload), _rules(deployment, workload), deployment.speed_model
    if workload.requests_per_second is None:
        return play_queues(model, load, rules, middle.requests_per_second)
    rate = workload.requests_per_second / deployment.replicas
    found = play_queues(model, load, rules, rate)
    return None if found is None else _as_they_come(found, deployment.served, rate)


def _as_they_come(found: Queues, served: Served, rate: float) -> Queues:
    """Of requests at a ``rate`` no more are answered than come, and fewer only where the replica can answer so few."""
    interval = found.intervals["throughput"]
    if interval is None or served.supply is None:
        return found
    low = min(served.supply.middle * interval.low / rate, 1.0)
    return replace(found, intervals=found.intervals | {"throughput": replace(interval, low=low, high=1.0)})


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


def _load(deployment: Deployment, workload: Workload) -> PlayedLoad:
    prompt, answer = workload.input_tokens, workload.output_tokens
    if workload.requests_per_second is None:
        return steady_users(round(deployment.served.num_users), prompt, answer)
    rate = workload.requests_per_second / deployment.replicas
    return steady_rate(rate, deployment.served.num_users, prompt, answer)


def _rules(deployment: Deployment, workload: Workload) -> SchedulingRules:
    prediction = deployment.prediction
    tokens = deployment.capacity.average_sequences * workload.average_context
    engine = EngineChoice("vllm", prediction.version)
    return engine_rules(engine, prediction.settings.serving, deployment.choice.layout, tokens)
