"""Runs the trials of a sweep, one after the other, whatever becomes of each of them.

What serves a trial is a ``TrialHost``; a row is on disk before the next trial starts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from kvplan.runs.columns import Row
from kvplan.runs.setting_text import ALWAYS_SHOWN
from kvplan.runs.storage.store import SweepStore
from kvplan.runs.trials import Trial
from kvplan.sweeps.forecast.drafting import predicted_gain
from kvplan.sweeps.forecast.prediction import Predictor
from kvplan.sweeps.forecast.timing import TrialTimes
from kvplan.sweeps.forecast.under_load import PreparedTrial, UnderLoad
from kvplan.sweeps.hosts import TrialHost
from kvplan.sweeps.progress import Progress
from kvplan.sweeps.rows import SweepIdentity, finished_record, predicted_by_reserve, row_before
from kvplan.sweeps.schedules.schedule import Schedule, Step, Steps
from kvplan.sweeps.worker.client import TimeLimits


class Runner:
    """``run()`` may be interrupted by KeyboardInterrupt; ``close()`` ends the host.

    expected: the trials that the schedule is expected to run, for the time left.
    shown: the settings and loads that progress names.
    limits, timeout_seconds: how long a trial may take, see TrialTimes.
    """

    def __init__(
        self,
        *,
        schedule: Schedule,
        expected: Sequence[Trial],
        store: SweepStore,
        predictor: Predictor,
        identity: SweepIdentity,
        host: TrialHost,
        progress: Progress,
        shown: Sequence[str] = ALWAYS_SHOWN,
        limits: TimeLimits = TimeLimits(),
        timeout_seconds: float | None = None,
    ) -> None:
        self._schedule = schedule
        self._expected = {trial.trial_id: trial for trial in expected}
        self._store = store
        self._identity = identity
        self._host = host
        self._progress = progress
        self._shown = shown
        self._under = UnderLoad(identity.workload, predictor)
        self._times = TrialTimes(self._under, limits, timeout_seconds)

    def run(self) -> None:
        """Follow the schedule to its end. Rows that are already stored answer their steps; those trials do not run."""
        stored = {row["trial_id"]: row for row in self._store.rows}
        for trial_id in stored:
            self._expected.pop(trial_id, None)
        num_done = sum(row["status"] != "skipped_oom_dominated" for row in stored.values())
        self._progress.start(num_done, len(self._expected), self._seconds_left, self._shown)
        steps = self._schedule.steps()
        try:
            step = next(steps, None)
            while step is not None:
                row = stored.get(step.trial.trial_id) or self._take(step)
                step = _send(steps, row)
        finally:
            self._progress.stop()

    def close(self) -> None:
        """End what serves the trials; to be called whatever happened."""
        self._host.close()

    @property
    def _seconds_left(self) -> float:
        return self._times.seconds_left(self._expected.values(), is_loaded=self._host.is_loaded)

    def _take(self, step: Step) -> Row:
        """Run one step, or only record it; its row is on disk when this returns."""
        prepared = self._under.prepare(step.trial)
        if step.skip_sentence is not None:
            return self._skip(prepared, step.skip_sentence)
        row = self._run_one(prepared)
        self._times.learn(row, prepared)
        self._expected.pop(step.trial.trial_id, None)
        self._progress.trial_ended(row, len(self._expected), self._seconds_left)
        self._store.refresh_results()
        return row

    def _skip(self, prepared: PreparedTrial, sentence: str) -> Row:
        skipped: Row = {"status": "skipped_oom_dominated", "error": sentence}
        record = finished_record(self._identity, row_before(self._identity, prepared), skipped, None, 0.0)
        self._store.append(record)
        return record["row"]

    def _run_one(self, prepared: PreparedTrial) -> Row:
        row = row_before(self._identity, prepared)
        self._progress.trial_started(prepared.trial, prepared.prediction)
        started = time.monotonic()
        result = self._host.run(prepared, self._times.limits_for(prepared), self._progress.event)
        row |= predicted_by_reserve(prepared, result.reserve)
        measured = result.row | predicted_gain(prepared, result.row)
        record = finished_record(self._identity, row, measured, result.series, time.monotonic() - started)
        self._store.append(record, result.requests)
        return record["row"]


def _send(steps: Steps, row: Row) -> Step | None:
    try:
        return steps.send(row)
    except StopIteration:
        return None
