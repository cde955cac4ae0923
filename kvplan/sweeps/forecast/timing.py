"""How long trials take: the time left, and how long to wait for a trial before it counts as hung."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kvplan.runs.columns import Row
from kvplan.runs.trials import Load, Trial, TrialSettings
from kvplan.sweeps.forecast.under_load import PreparedTrial, UnderLoad
from kvplan.sweeps.worker.client import TimeLimits

SECONDS_PER_TRIAL: Final = 0.3  # carving a pool, sending requests, writing the row
SECONDS_PER_LOAD: Final = 6.0  # importing torch and filling a small model's weights
SECONDS_PER_START: Final = 45.0  # another engine's server, for each setting
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
    _starts: list[float] = field(default_factory=list)
    _unscaled: dict[tuple[TrialSettings, Load], float] = field(default_factory=dict)

    def learn(self, row: Row, prepared: PreparedTrial) -> None:
        """Correct the predictor by one trial. Not if requests arrive over time: then the duration is theirs."""
        if row["start_seconds"] is not None:
            self._starts.append(row["start_seconds"])
        if row["duration"] is None or not row["predicted_seconds"] or prepared.last_arrival_seconds > 0:
            return
        self._ratios.append(row["duration"] / row["predicted_seconds"] * prepared.predictor.time_scale)
        self.under.predictor = self.under.predictor.with_time_scale(
            statistics.median(self._ratios[-_TRIALS_REMEMBERED:])
        )

    def seconds_left(self, trials: Iterable[Trial], *, is_loaded: bool) -> float:
        """Return the seconds for trials that are still to run; includes loading the weights unless that is done."""
        left = list(trials)
        loading = SECONDS_PER_LOAD if left and not is_loaded else 0.0
        if self.under.predictor.engine is not None:
            loading = self._start_seconds * len({trial.settings for trial in left})
        serving = sum(map(self._seconds, left))
        return loading + serving * self.under.predictor.time_scale + SECONDS_PER_TRIAL * len(left)

    @property
    def _start_seconds(self) -> float:
        return statistics.median(self._starts[-_TRIALS_REMEMBERED:]) if self._starts else SECONDS_PER_START

    def _seconds(self, trial: Trial) -> float:
        """Predicted with the unscaled clock, and remembered: simulating long workloads takes time."""
        key = trial.settings, trial.load
        if key not in self._unscaled:
            predictor = self.under.predictor_of(trial.load).with_time_scale(1.0)
            self._unscaled[key] = predictor.trial(trial.settings).seconds
        return self._unscaled[key]

    def limits_for(self, prepared: PreparedTrial) -> TimeLimits:
        """Every stage may take many times its prediction: predictions of time are rough, and machines are shared."""
        settings, arrivals = prepared.trial.settings, prepared.last_arrival_seconds
        memory = prepared.predictor.memory(settings)
        step = _SLOWNESS * prepared.predictor.largest_step_seconds(settings)
        serving = self.limits.serving + arrivals + _SLOWNESS * prepared.prediction.seconds
        return TimeLimits(
            starting=self.limits.starting,
            loading=self.limits.loading + memory.weight_bytes / _SLOWEST_LOAD_BYTES_PER_SECOND + 3 * step,
            setup=self.limits.setup + 3 * step,
            warmup=self.limits.warmup + 3 * step,
            serving=serving if self.timeout_seconds is None else self.timeout_seconds,
            silence=self.limits.silence + arrivals + step,
        )
