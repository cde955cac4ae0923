"""Runs the trials of a plan on all workers of a pool. This process alone writes: a row is on disk once its trial ended.

A worker that is lost costs nothing but time: its trial goes to another one, and the row says how often that happened.
Trials are handed out in the order of the plan, but a worker that has weights gets trials for these first.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final

from kvplan.errors import KvplanError
from kvplan.runs.columns import Row
from kvplan.runs.rows import ran_without_kernels
from kvplan.runs.setting_text import ALWAYS_SHOWN
from kvplan.runs.storage.store import SweepStore
from kvplan.runs.trials import LoadKey, Trial
from kvplan.sweeps.forecast.drafting import predicted_gain
from kvplan.sweeps.forecast.prediction import Predictor
from kvplan.sweeps.forecast.timing import TrialTimes
from kvplan.sweeps.forecast.under_load import PreparedTrial, UnderLoad
from kvplan.sweeps.hosts import HostLost, HostPool, HostUnfit, PoolHost
from kvplan.sweeps.progress import Progress, RunningTrial
from kvplan.sweeps.rows import SweepIdentity, finished_record, predicted_by_reserve, row_before
from kvplan.sweeps.schedules.reruns import reruns_after
from kvplan.sweeps.worker.client import TimeLimits
from kvplan.sweeps.worker.protocol import WITHOUT_KERNELS, Event, TrialResult
from kvplan.units import plural

MOST_LOST: Final = 5
"""Workers that may be lost with one trial; with one more, the trial itself counts as their end."""
_TICK_SECONDS: Final = 0.5
_MOST_HOSTS: Final = 1024


@dataclass(slots=True)
class _Job:
    """A trial that runs on a host, or waits for one. num_lost: workers that were lost with it."""

    trial: Trial
    num_lost: int = 0


@dataclass(slots=True)
class _Seat:
    """A host, and what it does: nothing while ``job`` is None. load_key: of the weights that it has."""

    host: PoolHost
    load_key: LoadKey | None = None
    job: _Job | None = None
    prepared: PreparedTrial | None = None
    row: Row | None = None
    started: float = 0.0
    event: Event | None = None

    def note(self, event: Event) -> None:
        """Called from the host's thread; the main thread shows the latest."""
        self.event = event

    @property
    def running(self) -> RunningTrial | None:
        return None if self.job is None else RunningTrial(self.host.name, self.job.trial, self.event)


class PoolRunner:
    """``run()`` may be interrupted by KeyboardInterrupt; ``close()`` ends the pool.

    trials: of the plan; rows that are already stored answer theirs. reruns: outliers are run again, after all others.
    patience_seconds: how long to wait where no worker is left. The rest is as for ``Runner``.
    """

    def __init__(
        self,
        *,
        trials: Sequence[Trial],
        store: SweepStore,
        predictor: Predictor,
        identity: SweepIdentity,
        pool: HostPool,
        progress: Progress,
        reruns: bool = False,
        shown: Sequence[str] = ALWAYS_SHOWN,
        limits: TimeLimits = TimeLimits(),
        timeout_seconds: float | None = None,
        patience_seconds: float = 120.0,
    ) -> None:
        self._trials = trials
        self._store = store
        self._identity = identity
        self._pool = pool
        self._progress = progress
        self._reruns = reruns
        self._shown = shown
        self._under = UnderLoad(identity.workload, predictor)
        self._times = TrialTimes(self._under, limits, timeout_seconds)
        self._patience_seconds = patience_seconds
        self._threads = ThreadPoolExecutor(_MOST_HOSTS, thread_name_prefix="trial")
        self._starting: dict[Future[None], _Seat] = {}
        self._serving: dict[Future[TrialResult], _Seat] = {}
        self._idle: list[_Seat] = []
        self._waiting: list[_Job] = []
        self._unfit: list[str] = []
        self._without_kernels: set[str] = set()
        self._last_seen = time.monotonic()

    def run(self) -> None:
        """Every trial of the plan, then the reruns."""
        done = {row["trial_id"] for row in self._store.rows}
        left = [trial for trial in self._trials if trial.trial_id not in done]
        self._waiting = [_Job(trial) for trial in left]
        self._progress.start(len(done), len(left), self._seconds_left, self._shown)
        try:
            self._run_waiting()
            if self._reruns:
                rows = {row["trial_id"]: row for row in self._store.rows}
                again = reruns_after(self._trials, rows)
                self._waiting = [_Job(trial) for trial in again if trial.trial_id not in rows]
                self._run_waiting()
        finally:
            self._progress.stop()

    def close(self) -> None:
        """End all workers; to be called whatever happened."""
        self._pool.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    @property
    def _seconds_left(self) -> float:
        seats = [*self._serving.values(), *self._idle]
        left = [job.trial for job in self._waiting] + [seat.job.trial for seat in self._serving.values() if seat.job]
        return self._times.seconds_left(left, is_loaded=bool(self._serving)) / max(1, len(seats))

    def _run_waiting(self) -> None:
        while self._waiting or self._serving:
            for host in self._pool.new_hosts():
                self._starting[self._threads.submit(host.start)] = _Seat(host)
            if self._serving or self._idle:
                self._last_seen = time.monotonic()
            self._hand_out()
            self._progress.running([seat.running for seat in self._serving.values() if seat.running is not None])
            futures: list[Future[Any]] = [*self._starting, *self._serving]
            done, _ = wait(futures, timeout=_TICK_SECONDS, return_when=FIRST_COMPLETED)
            if not done and not self._serving:
                self._refuse_to_wait_forever()
            for future in done:
                if future in self._starting:
                    self._started(future, self._starting.pop(future))
                else:
                    self._ended(future, self._serving.pop(future))

    def _refuse_to_wait_forever(self) -> None:
        """KvplanError where no worker has been there for a while, and nothing but the user could bring one."""
        if self._idle or time.monotonic() - self._last_seen < self._patience_seconds:
            if not self._starting:
                time.sleep(_TICK_SECONDS)  # an empty wait returns at once
            return
        reason = f" {self._unfit[0]}" if self._unfit else ""
        raise KvplanError(
            f"No worker has been available for {self._patience_seconds:.0f} s.{reason}",
            hint=f"bring workers back, then continue with --resume {self._store.directory}",
        )

    def _hand_out(self) -> None:
        while self._idle and self._waiting:
            seat = self._idle.pop(0)
            place = next((n for n, job in enumerate(self._waiting) if job.trial.settings.load_key == seat.load_key), 0)
            self._begin(seat, self._waiting.pop(place))

    def _begin(self, seat: _Seat, job: _Job) -> None:
        prepared = self._under.prepare(job.trial)
        seat.job, seat.prepared, seat.event = job, prepared, None
        seat.row = row_before(self._identity, prepared)
        seat.load_key = job.trial.settings.load_key
        seat.started = time.monotonic()
        self._progress.trial_started(job.trial, prepared.prediction)
        limits = self._times.limits_for(prepared)
        self._serving[self._threads.submit(seat.host.run, prepared, limits, seat.note)] = seat

    def _started(self, future: Future[None], seat: _Seat) -> None:
        try:
            future.result()
        except HostLost as lost:
            self._lose(seat, lost)
        except HostUnfit as unfit:
            self._unfit.append(str(unfit))
            self._progress.note(f"{seat.host.name} is left out: {unfit}")
        else:
            self._idle.append(seat)

    def _ended(self, future: Future[TrialResult], seat: _Seat) -> None:
        job = seat.job
        assert job is not None
        try:
            result = future.result()
        except HostLost as lost:
            self._lose(seat, lost)
            job.num_lost += 1
            if job.num_lost <= MOST_LOST:
                self._waiting.insert(0, job)
            else:
                error = f"{plural(job.num_lost, 'worker')} were lost while this trial ran: the last one {lost}."
                self._record(seat, job, TrialResult({"status": "crash", "error": error}))
            return
        self._idle.append(seat)
        self._record(seat, job, result)
        seat.job = None

    def _lose(self, seat: _Seat, lost: HostLost) -> None:
        self._progress.note(f"{seat.host.name} was lost: it {lost}")
        self._pool.forget(seat.host)

    def _record(self, seat: _Seat, job: _Job, result: TrialResult) -> None:
        """Write the row, learn from it, and show it."""
        assert seat.row is not None and seat.prepared is not None
        result.row["num_lost_workers"] = job.num_lost
        seconds = time.monotonic() - seat.started
        row = seat.row | predicted_by_reserve(seat.prepared, result.reserve)
        measured = result.row | predicted_gain(seat.prepared, result.row)
        record = finished_record(self._identity, row, measured, result.series, seconds)
        self._store.append(record, result.requests)
        self._store.add_versions(dict(seat.host.versions))
        self._times.learn(record["row"], seat.prepared)
        if ran_without_kernels(record["row"]) and seat.host.name not in self._without_kernels:
            self._without_kernels.add(seat.host.name)
            self._progress.note(f"warning: {seat.host.name} has no compiled kernels: {WITHOUT_KERNELS}")
        num_left = len(self._waiting) + len(self._serving)
        self._progress.trial_ended(record["row"], num_left, self._seconds_left)
        self._store.refresh_results()
