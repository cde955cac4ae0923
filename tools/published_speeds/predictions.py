"""What the planner answers to a row: the functions that ``kvplan plan`` calls, on the row's own deployment."""

from __future__ import annotations

import contextlib
import math
import statistics
from dataclasses import dataclass, replace
from typing import Final

from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.catalog.published_errors import FigureName, ServerKind, published_errors, server_kind
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.speed.queueing.figures import PlayedFigures
from kvplan.estimate.speed.queueing.loads import PlayedLoad
from kvplan.estimate.speed.queueing.play import play
from kvplan.estimate.vllm.memo import Memo
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm
from kvplan.planner.choices.basis import PlanBasis, capacity_of, speed_model
from published_speeds.models import model_kind
from published_speeds.playing import engine_rules, played_load, pool_tokens
from published_speeds.rows import PublishedRow
from published_speeds.settings import Deployed

_MEMO: Memo = {}


@dataclass(frozen=True, slots=True)
class Figure:
    """Low end, middle and high end of a prediction. Milliseconds, or output tokens per second of all GPUs."""

    low: float
    middle: float
    high: float

    def holds(self, measured: float) -> bool:
        return self.low <= measured <= self.high


@dataclass(frozen=True, slots=True)
class Predicted:
    """``origin``: where the speeds come from; figures are None where the queue grows for ever.

    ``pool_tokens``: of all groups of an instance. ``needed_tokens``: of what is sent to it at once, or in flight at
    most; 0 where requests come at a rate. ``format``: as for ``ServerKind``.
    """

    origin: str
    ttft_ms: Figure | None
    tpot_ms: Figure | None
    output_throughput: Figure | None
    ttft_p99_ms: Figure | None = None
    tpot_p99_ms: Figure | None = None
    pool_tokens: float = math.inf
    needed_tokens: float = 0.0
    format: str = ""

    @property
    def holds_load(self) -> bool:
        """Whether the pool has room for all that is in flight, so that only times decide."""
        return self.needed_tokens <= self.pool_tokens


def predict(row: PublishedRow, found: Deployed, measured: MeasuredProfiles) -> Predicted:
    """KvplanError where the layout does not divide the model; figures are None where the weights do not fit."""
    basis = PlanBasis(found.request, found.workload, measured, memo=_MEMO)
    start = start_of(found)
    _check_pool(row, start)
    model = speed_model(basis, found.choice, start)
    tokens = capacity_of(basis, found.choice, start).average_sequences * found.workload.average_context
    pool = pool_tokens(row, found, start, tokens)
    load = played_load(row, found.replicas, pool)
    played = play(load, engine_rules(row, found, start, pool), model.steps)
    figures = _figures(row, played, found, model.origin, model.work.kernel_format)
    return replace(figures, pool_tokens=pool, needed_tokens=_needed_tokens(load))


def _needed_tokens(load: PlayedLoad) -> float:
    """Of all requests that are in flight at once, at their ends; 0 where they come at a rate."""
    if load.requests_per_second is not None:
        return 0
    at_once = min(load.max_concurrency or load.num_requests, load.num_requests)
    return at_once * statistics.fmean(prompt + answer for prompt, answer in load.lengths)


_LEAST_POOL_OF_WEIGHTS: Final = 0.1


def _check_pool(row: PublishedRow, start: VllmPrediction) -> None:
    """UsageError where the pool is not known.

    vLLM does not start with what is stated: something else was. Of gpu_memory_utilization that was raised
    "as needed" no value is known: at vLLM's default these weights leave so little that nobody would leave it there
    (less than a tenth of them).
    """
    rank = start.rank
    if row.text["engine"] == "vLLM" and not start.fits:
        raise UsageError("vLLM does not start with what is stated: something else was")
    was_raised = row.text["utilization"] == "as needed"
    if was_raised and rank.available_kv_bytes < _LEAST_POOL_OF_WEIGHTS * rank.weight_bytes:
        raise UsageError("gpu_memory_utilization decides how many run, was raised as needed, and is not stated")


def start_of(found: Deployed) -> VllmPrediction:
    """vLLM's start with the row's lengths; of its first engine with the model's own longest one where that fits and
    no other was set.

    That engine chunks prompts by itself where requests may be longer than 32,768 tokens.
    """
    spec, gpu, settings, version = found.spec, found.choice.gpu, found.settings, found.vllm_version
    if found.is_first_engine and not found.states_longest:
        with contextlib.suppress(KvplanError):
            start = predict_vllm(spec, gpu, replace(settings, max_model_len=None), version, memo=_MEMO)
            if start.fits:
                return start
    return predict_vllm(spec, gpu, settings, version, memo=_MEMO)


def _figures(row: PublishedRow, played: PlayedFigures, found: Deployed, origin: str, format: str) -> Predicted:
    """With the intervals that ship."""
    kind = kind_of(found, format)
    ttft, tpot, measured = played.ttft, played.tpot, row.measured
    times_mean = math.inf if tpot is None else tpot.p99 / getattr(tpot, measured.tpot_kind)

    def figure(value: float, name: FigureName, statistic: str = "mean") -> Figure:
        interval = published_errors().interval(kind, name, in_any_direction=origin != "roofline")
        low, high = (1.0, 1.0) if interval is None else interval.at(statistic, times_mean)
        return Figure(value * low, value, value * high)

    return Predicted(
        origin,
        ttft_ms=figure(1000 * getattr(ttft, measured.ttft_kind), "ttft"),
        tpot_ms=None if tpot is None else figure(1000 * getattr(tpot, measured.tpot_kind), "tpot"),
        output_throughput=figure(found.replicas * played.output_throughput, "throughput"),
        ttft_p99_ms=figure(1000 * ttft.p99, "ttft", "p99"),
        tpot_p99_ms=None if tpot is None else figure(1000 * tpot.p99, "tpot", "p99"),
        format=format,
    )


def kind_of(found: Deployed, format: str = "") -> ServerKind:
    """The kind of server that a row's deployment is."""
    kind = model_kind(found.spec)
    return server_kind(
        found.engine,
        found.choice.gpu.architecture,
        is_mixture=kind != "dense",
        is_latent=kind == "latent",
        is_first=found.is_first_engine,
        format=format,
    )
