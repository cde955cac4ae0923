"""Workload, requests and predictor of a trial, whose load may differ from the sweep's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from kvplan.machine.opened_device import Reserve
from kvplan.runs.trials import SWEEP_LOAD, Load, Trial
from kvplan.sweeps.forecast.prediction import Predictor, TrialPrediction
from kvplan.workload.requests import RequestSpec, WorkloadSpec, generate_requests


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
