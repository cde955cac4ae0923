"""How long trials take: what is left to run, and how long to wait for one before it counts as hung."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kvplan.runs.statuses import MEASURED_STATUSES
from kvplan.runs.trials import Load, Trial, TrialSettings
from kvplan.sweeps.forecast.prediction import TrialPrediction
from kvplan.sweeps.forecast.under_load import UnderLoad
from kvplan.sweeps.worker.client import TimeLimits

SECONDS_PER_TRIAL: Final = 0.3  # carving a pool, sending requests, writing the row
SECONDS_PER_LOAD: Final = 6.0  # importing torch and filling a small model's weights
_SLOWNESS: Final = 30  # how many times slower than predicted a trial may be: a shared machine can be that busy
_SLOWEST_LOAD_BYTES_PER_SECOND: Final = 50e6
_TRIALS_REMEMBERED: Final = 9


@dataclass(slots=True)
class TrialTimes:
    """Scales the predictor in ``under`` by what was measured.

    limits: what each stage gets on top of its prediction. timeout_seconds: longest time to serve a trial; None derives
    it from the trial's prediction.
    """

    under: UnderLoad
    limits: TimeLimits
    timeout_seconds: float | None
    _ratios: list[float] = field(default_factory=list)
    _unscaled: dict[tuple[TrialSettings, Load], float] = field(default_factory=dict)

    def learn(self, row: Mapping[str, Any], load: Load) -> None:
        """So that the time left is right from the first trial on. Where requests arrive over time, it is theirs."""
        arrives_over_time = self.under.requests_of(load)[-1].arrival_seconds > 0
        if row["status"] not in MEASURED_STATUSES or not row["predicted_seconds"] or arrives_over_time:
            return
        predictor = self.under.predictor
        self._ratios.append(row["duration"] / row["predicted_seconds"] * predictor.time_scale)
        self.under.predictor = predictor.with_time_scale(statistics.median(self._ratios[-_TRIALS_REMEMBERED:]))

    def seconds_left(self, trials: Iterable[Trial], *, is_loaded: bool) -> float:
        """For trials that are still to run; with the load of the weights unless that is done."""
        left = list(trials)
        loading = SECONDS_PER_LOAD if left and not is_loaded else 0.0
        serving = sum(map(self._seconds, left))
        return loading + serving * self.under.predictor.time_scale + SECONDS_PER_TRIAL * len(left)

    def _seconds(self, trial: Trial) -> float:
        """Predicted before anything was measured, and remembered: forecasts of long workloads are not free."""
        key = trial.settings, trial.load
        if key not in self._unscaled:
            predictor = self.under.predictor_of(trial.load).with_time_scale(1.0)
            self._unscaled[key] = predictor.trial(trial.settings).seconds
        return self._unscaled[key]

    def limits_for(self, trial: Trial, prediction: TrialPrediction) -> TimeLimits:
        """Every stage may take many times its prediction: predictions of time are rough, and machines are shared."""
        predictor = self.under.predictor_of(trial.load)
        memory = predictor.memory(trial.settings)
        step = _SLOWNESS * predictor.largest_step_seconds(trial.settings)
        arrivals = max((request.arrival_seconds for request in predictor.requests), default=0.0)
        serving = self.limits.serving + arrivals + _SLOWNESS * prediction.seconds
        return TimeLimits(
            starting=self.limits.starting,
            loading=self.limits.loading + memory.weight_bytes / _SLOWEST_LOAD_BYTES_PER_SECOND + 3 * step,
            setup=self.limits.setup + 3 * step,
            warmup=self.limits.warmup + 3 * step,
            serving=serving if self.timeout_seconds is None else self.timeout_seconds,
            silence=self.limits.silence + arrivals + step,
        )
