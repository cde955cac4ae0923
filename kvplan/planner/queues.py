"""What the requests of a plan's load see while they queue for each other: percentiles of one replica, played."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvplan.catalog.engines import vllm_release
from kvplan.catalog.published_errors import ErrorInterval, FigureName
from kvplan.estimate.speed.latency import FIGURES
from kvplan.estimate.speed.queueing.figures import Distribution, PlayedFigures
from kvplan.estimate.speed.queueing.loads import PlayedLoad, steady_rate, steady_users
from kvplan.estimate.speed.queueing.play import play
from kvplan.estimate.speed.queueing.rules import SchedulingRules, vllm_rules
from kvplan.estimate.speed.step_terms import StepLoad, StepTerms
from kvplan.planner.deployment import Deployment
from kvplan.planner.request import Workload


@dataclass(frozen=True, slots=True)
class Queues:
    """One replica under its share of the load. ``intervals``: factors of a figure that hold 9 in 10 measurements."""

    figures: PlayedFigures
    output_throughput: float
    intervals: dict[FigureName, ErrorInterval | None]


def queues_of(deployment: Deployment, workload: Workload) -> Queues | None:
    """None where the replica does not keep up with its load: the queue grows for ever."""
    served, model = deployment.served, deployment.speed_model
    if served.middle is None:
        return None
    figures = play(_load(deployment, workload), _rules(deployment, workload), model.steps)
    return Queues(
        figures,
        served.middle.requests_per_second * workload.output_tokens,
        {name: model.error_interval(name) for name in FIGURES},
    )


def explained_steps(deployment: Deployment, workload: Workload) -> list[tuple[str, StepTerms, float]]:
    """(name, parts, seconds of the whole) of a step that decodes for everybody, and of one that reads a prompt too."""
    served, model = deployment.served, deployment.speed_model
    running = max(round(served.num_users), 1)
    decode = StepLoad.decoding(running, workload.average_context)
    prompt = decode.with_prompt(workload.input_tokens)
    name = f"{running:,} decode"
    return [
        (each, model.step_terms(load), model.step_seconds(load))
        for each, load in ((name, decode), (f"{name}, a prompt of {workload.input_tokens:,}", prompt))
    ]


def _load(deployment: Deployment, workload: Workload) -> PlayedLoad:
    prompt, answer = workload.input_tokens, workload.output_tokens
    if workload.requests_per_second is None:
        return steady_users(round(deployment.served.num_users), prompt, answer)
    rate = workload.requests_per_second / deployment.replicas
    return steady_rate(rate, deployment.served.num_users, prompt, answer)


def _rules(deployment: Deployment, workload: Workload) -> SchedulingRules:
    prediction = deployment.prediction
    tokens = deployment.capacity.average_sequences * workload.average_context
    rules = vllm_rules(prediction.settings.serving, vllm_release(prediction.version), tokens)
    layout = deployment.choice.layout
    return rules.over_groups(layout.data_parallel_size, layout.pipeline_parallel_size)


def queues_document(found: Queues | None) -> dict[str, Any] | None:
    """Milliseconds and tokens per second; each as [low, middle, high]."""
    if found is None:
        return None
    figures, intervals = found.figures, found.intervals
    return {
        "ttft_p50_ms": _triple(1000 * figures.ttft.median, intervals["ttft"]),
        "ttft_p99_ms": _triple(1000 * figures.ttft.p99, intervals["ttft"]),
        "tpot_p50_ms": _triple(_tpot(figures, "median"), intervals["tpot"]),
        "tpot_p99_ms": _triple(_tpot(figures, "p99"), intervals["tpot"]),
        "output_throughput": _triple(found.output_throughput, intervals["throughput"]),
        "num_preemptions": figures.num_preemptions,
        "intervals": {
            name: None if each is None else {"num_rows": each.num_rows, "num_sources": each.num_sources}
            for name, each in intervals.items()
        },
    }


def _tpot(figures: PlayedFigures, name: str) -> float | None:
    tpot: Distribution | None = figures.tpot
    return None if tpot is None else 1000 * float(getattr(tpot, name))


def _triple(value: float | None, interval: ErrorInterval | None) -> list[float] | None:
    if value is None:
        return None
    low, high = (1.0, 1.0) if interval is None else (interval.low, interval.high)
    return [round(value * low, 2), round(value, 2), round(value * high, 2)]
