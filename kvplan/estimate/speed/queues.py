"""What requests see while they queue for each other, with intervals; and what the steps that serve them consist of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from kvplan.catalog.devices.server_scale import ServerScale
from kvplan.catalog.published_errors import ErrorInterval, FigureName
from kvplan.estimate.speed.bounds import NO_BOUNDS, SpeedBounds
from kvplan.estimate.speed.latency import FIGURES, Range, SpeedModel
from kvplan.estimate.speed.queueing.figures import PlayedFigures, Statistic
from kvplan.estimate.speed.queueing.front_end import BUSIEST
from kvplan.estimate.speed.queueing.loads import PlayedLoad
from kvplan.estimate.speed.queueing.play import play
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.steps.step_terms import StepLoad, StepTerms


@dataclass(frozen=True, slots=True)
class Queues:
    """One replica under its share of the load. ``intervals``: factors of a figure that hold 9 in 10 measurements.

    ``bounds``: what the data sheet allows, where every interval ends (``between``).
    """

    figures: PlayedFigures
    output_throughput: float
    intervals: dict[FigureName, ErrorInterval | None]
    bounds: SpeedBounds = field(default=NO_BOUNDS)

    def between(self, name: FigureName, value: float, statistic: Statistic = "p50") -> Range | None:
        """The interval around ``value`` (seconds; tokens per second); None where nothing was ever compared."""
        interval = self.intervals[name]
        if interval is None:
            return None
        tpot = self.figures.tpot
        ends = interval.at(statistic, tpot.p99 / tpot.mean if name == "tpot" and tpot is not None else math.inf)
        low, high = value * ends.low, value * ends.high
        if name == "throughput":
            most = max(self.bounds.output_tokens_per_second, value)
            return Range(min(low, most), min(high, most), most=most)
        least = min(self.bounds.ttft_seconds if name == "ttft" else self.bounds.tpot_seconds, value)
        return Range(max(low, least), max(high, least), least=least)


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
    takes, and that its user thinks afterwards (Little's law).

    None where the server's own work on so many requests leaves its event loop next to no time: the instance would wait
    for its server then, which neither the steady state nor published measurements tell how long.
    """
    if rules.front_end.busy_share(requests_per_second, model.output_tokens) > BUSIEST:
        return None
    figures = play(load, rules, model.steps)
    if load.max_concurrency is not None:
        requests_per_second = load.max_concurrency / figures.e2el.mean
    if load.think is not None and load.think.num_users:
        requests_per_second = load.think.num_users / (figures.e2el.mean + load.think.seconds)
    num_users = max(requests_per_second * figures.e2el.mean, 1.0)
    intervals = {name: model.error_interval(name, num_users) for name in FIGURES}
    bounds = bounds_of(model, figures, requests_per_second)
    found = Queues(figures, requests_per_second * model.output_tokens, intervals, bounds)
    if load.think is not None and load.think.num_users:
        return _of_thinking(found, load.think.seconds)
    if load.max_concurrency is None:
        return found
    return _of_one(found, model.output_tokens) if load.max_concurrency == 1 else _of_users(found, model.output_tokens)


def bounds_of(model: SpeedModel, figures: PlayedFigures, requests_per_second: float) -> SpeedBounds:
    """What the data sheet allows in the state that was played: those who wait for their first token do not decode."""
    in_progress = max(requests_per_second * figures.e2el.mean, 1.0)
    decoding = requests_per_second * (figures.e2el.mean - figures.ttft.mean)
    return model.bounds(in_progress, min(max(decoding, 1.0), in_progress))


def _of_thinking(found: Queues, think_seconds: float) -> Queues:
    """Pauses are as long whatever the engine does: only the rest of a user's time is as uncertain as a throughput."""
    known = found.intervals["throughput"]
    if known is None:
        return found
    latency = found.figures.e2el.mean
    low, high = ((latency + think_seconds) / (latency / end + think_seconds) for end in (known.low, known.high))
    return replace(found, intervals=found.intervals | {"throughput": replace(known, low=low, high=high)})


def _of_one(found: Queues, output_tokens: int) -> Queues:
    """One user's tokens per second follow from both times: their interval is what these leave."""
    left = _left_by_times(found, output_tokens, "p50")
    known = found.intervals["throughput"]
    if left is None or known is None:
        return found
    return replace(found, intervals=found.intervals | {"throughput": replace(known, low=left.low, high=left.high)})


def _of_users(found: Queues, output_tokens: int) -> Queues:
    """Tokens per second of users who wait for their answers are none that both times leave no room for."""
    left = _left_by_times(found, output_tokens, "mean")
    known = found.intervals["throughput"]
    if left is None or known is None:
        return found
    within = replace(known, low=max(known.low, left.low), high=min(known.high, left.high))
    return replace(found, intervals=found.intervals | {"throughput": within})


def _left_by_times(found: Queues, output_tokens: int, statistic: Statistic) -> Range | None:
    """Factors of a closed loop's throughput that the intervals of TTFT and TPOT leave; None where one has none."""
    ttft, tpot = found.figures.ttft.at(statistic), found.figures.tpot
    first = found.between("ttft", ttft)
    others = Range(0.0, 0.0) if tpot is None else found.between("tpot", tpot.at(statistic))
    if first is None or others is None:
        return None
    steps = output_tokens - 1
    whole = ttft + (0.0 if tpot is None else steps * tpot.at(statistic))
    return Range(whole / (first.high + steps * others.high), whole / (first.low + steps * others.low))


def decode_step(model: SpeedModel, running: int, context_tokens: int) -> ExplainedStep:
    """A token for each of ``running`` sequences of ``context_tokens``."""
    load = _decoding(model, running, context_tokens)
    return ExplainedStep(f"{running:,} decode", model.step_terms(load), model.step_seconds(load))


def mixed_step(model: SpeedModel, running: int, context_tokens: int) -> ExplainedStep:
    """The same, and a whole prompt read beside them."""
    tokens = (
        model.input_tokens if model.hits is None else round(model.input_tokens - model.hits.found(running, math.inf))
    )
    load = _decoding(model, running, context_tokens).with_prompt(tokens)
    name = f"{running:,} decode, a prompt of {model.input_tokens:,}"
    if tokens < model.input_tokens:
        name += f" of which {model.input_tokens - tokens:,} are in the cache"
    return ExplainedStep(name, model.step_terms(load), model.step_seconds(load))


def _decoding(model: SpeedModel, running: int, context_tokens: int) -> StepLoad:
    load = StepLoad.decoding(running, context_tokens, model.work.layout.data_parallel_size)
    rows = model.rows
    return replace(
        load, num_tokens=rows * load.num_tokens, num_pairs=rows * load.num_pairs, num_met=rows * load.num_met
    )


_COUNTS = ("num_rows", "num_sources", "num_alike")


def queues_document(found: Queues | None) -> dict[str, Any] | None:
    """Milliseconds and tokens per second; each as [low, middle, high]."""
    if found is None:
        return None
    figures, intervals = found.figures, found.intervals
    ttft, tpot = figures.ttft, figures.tpot
    percentiles: Sequence[Statistic] = ("p50", "p90", "p95", "p99")
    return {
        **{f"ttft_{each}_ms": _triple(found, "ttft", ttft.at(each), 1000, each) for each in percentiles},
        **{
            f"tpot_{each}_ms": None if tpot is None else _triple(found, "tpot", tpot.at(each), 1000, each)
            for each in percentiles
        },
        "output_throughput": _triple(found, "throughput", found.output_throughput),
        "num_preemptions": figures.num_preemptions,
        "intervals": {
            name: None if each is None else {count: getattr(each, count) for count in _COUNTS}
            for name, each in intervals.items()
        },
    }


def scale_document(scale: ServerScale | None) -> dict[str, Any] | None:
    """What times are scaled by, where their user measured such a server."""
    if scale is None:
        return None
    return {"kernels": round(scale.kernels, 4), "host": round(scale.host, 4), "note": scale.note}


def _triple(
    found: Queues, name: FigureName, value: float, unit: float = 1.0, statistic: Statistic = "p50"
) -> list[float]:
    ends = found.between(name, value, statistic) or Range(value, value)
    return [round(unit * each, 2) for each in (ends.low, value, ends.high)]
