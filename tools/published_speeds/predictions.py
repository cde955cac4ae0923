"""What the planner answers to a row: the functions that ``kvplan plan`` calls, on the row's own deployment."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.estimate.speed.latency import Range
from kvplan.estimate.vllm.prediction import Memo, VllmPrediction, predict_vllm
from kvplan.planner.load import Served, serve_rate, serve_users
from kvplan.planner.trial import Trial, capacity_of, speed_model
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
    """``origin``: where the speeds come from; figures are None where the queue grows for ever."""

    origin: str
    ttft_ms: Figure | None
    tpot_ms: Figure | None
    output_throughput: Figure | None


def predict(found: Deployed, measured: MeasuredProfiles) -> Predicted:
    """KvplanError where the layout does not divide the model; figures are None where the weights do not fit."""
    trial = Trial(found.request, found.workload, measured, memo=_MEMO)
    start = predict_vllm(found.spec, found.choice.gpu, found.settings, found.version, memo=_MEMO)
    model = speed_model(trial, found.choice, start)
    seats = _seats(trial, found, start)
    workload = found.workload
    if workload.requests_per_second is not None:
        served = serve_rate(model, workload.requests_per_second, seats)
    else:
        served = serve_users(model, min(workload.num_users or 1, seats))
    return _figures(served, found, model.origin)


def _seats(trial: Trial, found: Deployed, start: VllmPrediction) -> int:
    """Requests that run at once: those that the pool holds, at most max_num_seqs in each group."""
    groups = found.choice.layout.data_parallel_size
    room = capacity_of(trial, found.choice, start).average_sequences
    return max(min(room, groups * start.settings.serving.max_num_seqs), 1)


def _figures(served: Served, found: Deployed, origin: str) -> Predicted:
    middle, speed = served.middle, served.speed
    if middle is None:
        return Predicted(origin, None, None, None)
    tokens = found.replicas * found.workload.output_tokens
    return Predicted(
        origin,
        _times(speed.ttft_seconds, middle.ttft_seconds),
        _times(speed.tpot_seconds, middle.tpot_seconds),
        Figure(
            speed.requests_per_second.low * tokens,
            middle.requests_per_second * tokens,
            speed.requests_per_second.high * tokens,
        ),
    )


def _times(seconds: Range, middle: float) -> Figure:
    return Figure(1000 * seconds.low, 1000 * middle, 1000 * seconds.high)
