"""Whether a load is expected to meet the service level: the p99 of a simulated trial against the bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvplan.estimate.speed.simulation.figures import tpot_seconds, ttft_seconds
from kvplan.runs.trials import Load, TrialSettings
from kvplan.sweeps.forecast.trial_forecast import forecast_trial
from kvplan.sweeps.forecast.under_load import UnderLoad
from kvplan.workload.requests import clip_requests


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
