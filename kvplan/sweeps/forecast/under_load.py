"""Workload, requests and predictor of a trial, whose load may differ from the sweep's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kvplan.estimate.speed.simulation.figures import tpot_seconds, ttft_seconds
from kvplan.machine.device import Reserve
from kvplan.runs.trials import SWEEP_LOAD, Load, Trial, TrialSettings
from kvplan.sweeps.forecast.prediction import Predictor, TrialPrediction, forecast_trial
from kvplan.workload.requests import RequestSpec, WorkloadSpec, clip_requests, generate_requests


@dataclass(frozen=True, slots=True)
class PreparedTrial:
    """A trial with what follows from its load: the workload, the predictor for it, and the prediction."""

    trial: Trial
    workload: WorkloadSpec
    predictor: Predictor
    prediction: TrialPrediction

    def with_reserve(self, reserve: Reserve) -> PreparedTrial:
        """The same with what the engine keeps free for it."""
        settings = self.trial.settings
        predictor = self.predictor.with_reserve(settings, reserve)
        return replace(self, predictor=predictor, prediction=predictor.trial(settings))

    @property
    def last_arrival_seconds(self) -> float:
        return max((request.arrival_seconds for request in self.predictor.requests), default=0.0)


@dataclass(slots=True)
class UnderLoad:
    """Lengths and tokens are the same under every load; arrivals are the same pattern at another rate."""

    workload: WorkloadSpec
    predictor: Predictor
    _requests: dict[Load, tuple[RequestSpec, ...]] = field(default_factory=dict)

    def prepare(self, trial: Trial) -> PreparedTrial:
        """Everything that is known of a trial before it runs."""
        predictor = self.predictor_of(trial.load)
        return PreparedTrial(trial, self.workload_of(trial.load), predictor, predictor.trial(trial.settings))

    def workload_of(self, load: Load) -> WorkloadSpec:
        """The sweep's workload with the load's rate and concurrency."""
        changes: dict[str, Any] = {}
        if load.request_rate is not None:
            changes["request_rate"] = load.request_rate
        if load.max_concurrency is not None:
            changes["max_concurrency"] = load.max_concurrency
        return replace(self.workload, **changes)

    def requests_of(self, load: Load) -> tuple[RequestSpec, ...]:
        if load not in self._requests:
            is_same = load.request_rate in (None, self.workload.request_rate)
            self._requests[load] = self.predictor.requests if is_same else generate_requests(self.workload_of(load))
        return self._requests[load]

    def predictor_of(self, load: Load) -> Predictor:
        """The predictor for these requests; what it has learned of time stays."""
        if load == SWEEP_LOAD:
            return self.predictor
        concurrency = self.workload_of(load).max_concurrency
        return replace(self.predictor, requests=self.requests_of(load), max_concurrency=concurrency)


@dataclass(frozen=True, slots=True)
class SloPrediction:
    """Predicts with what ``under`` has learned; bounds by name (ttft, tpot, e2el)."""

    under: UnderLoad
    slo_seconds: Mapping[str, float]

    def keeps(self, settings: TrialSettings, load: Load) -> bool:
        """Whether every 99th percentile is expected to be within its bound; False if the engine will not start."""
        predictor = self.under.predictor_of(load)
        memory = predictor.memory(settings)
        if memory.outcome != "ok":
            return False
        simulated = forecast_trial(
            clip_requests(predictor.requests, settings.max_model_len).requests,
            settings,
            num_blocks=memory.num_blocks,
            groups=memory.layout.groups,
            cost=predictor.step_times(settings, memory),
            max_concurrency=predictor.max_concurrency,
        )
        ends = simulated.loads.end_seconds
        seconds = {
            "ttft": [ttft_seconds(request, ends) for request in simulated.requests],
            "tpot": [tpot_seconds(request, ends) or 0.0 for request in simulated.requests],
            "e2el": [ends[request.token_steps[-1][1] - 1] - request.arrival_seconds for request in simulated.requests],
        }
        return all(float(np.percentile(seconds[name], 99)) <= bound for name, bound in self.slo_seconds.items())
