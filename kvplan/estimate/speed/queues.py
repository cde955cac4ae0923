"""What requests see while they queue for each other, with intervals; and what the steps that serve them consist of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from kvplan.catalog.published_errors import ErrorInterval, FigureName
from kvplan.estimate.speed.latency import FIGURES, SpeedModel
from kvplan.estimate.speed.queueing.figures import Distribution, PlayedFigures
from kvplan.estimate.speed.queueing.front_end import BUSIEST
from kvplan.estimate.speed.queueing.loads import PlayedLoad
from kvplan.estimate.speed.queueing.play import play
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.steps.step_terms import StepLoad, StepTerms


@dataclass(frozen=True, slots=True)
class Queues:
    """One replica under its share of the load. ``intervals``: factors of a figure that hold 9 in 10 measurements."""

    figures: PlayedFigures
    output_throughput: float
    intervals: dict[FigureName, ErrorInterval | None]


class ExplainedStep(NamedTuple):
    """A step, its parts, and seconds of the whole."""

    name: str
    terms: StepTerms
    seconds: float


def play_queues(
    model: SpeedModel, load: PlayedLoad, rules: SchedulingRules, requests_per_second: float
) -> Queues | None:
    """Percentiles of ``load``, of which ``requests_per_second`` come, by the steady state in a closed loop.

    Throughput is what comes, or what the play of a closed loop answers: as many as are in flight, by the time that each
    takes (Little's law).

    None where the server's own work on so many requests leaves its event loop next to no time: the instance would wait
    for its server then, which neither the steady state nor published measurements tell how long.
    """
    if rules.front_end.busy_share(requests_per_second, model.output_tokens) > BUSIEST:
        return None
    figures = play(load, rules, model.steps)
    if load.max_concurrency is not None:
        requests_per_second = load.max_concurrency / figures.e2el.mean
    intervals = {name: model.error_interval(name) for name in FIGURES}
    return Queues(figures, requests_per_second * model.output_tokens, intervals)


def decode_step(model: SpeedModel, running: int, context_tokens: int) -> ExplainedStep:
    """A token for each of ``running`` sequences of ``context_tokens``."""
    load = _decoding(model, running, context_tokens)
    return ExplainedStep(f"{running:,} decode", model.step_terms(load), model.step_seconds(load))


def mixed_step(model: SpeedModel, running: int, context_tokens: int) -> ExplainedStep:
    """The same, and a whole prompt read beside them."""
    load = _decoding(model, running, context_tokens).with_prompt(model.input_tokens)
    name = f"{running:,} decode, a prompt of {model.input_tokens:,}"
    return ExplainedStep(name, model.step_terms(load), model.step_seconds(load))


def _decoding(model: SpeedModel, running: int, context_tokens: int) -> StepLoad:
    return StepLoad.decoding(running, context_tokens, model.work.layout.data_parallel_size)


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
