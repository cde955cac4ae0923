"""Runs the trials of a sweep, one after the other, whatever becomes of each of them.

The worker keeps its weights from trial to trial. A worker that dies costs the trial it was running: that row is a
``crash``, and the next trial gets a new worker. A worker that was killed (SIGKILL: never its own doing) says nothing
about its trial, which is begun anew; the row says how often. A row is on the disk before the next trial starts.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from kvplan.errors import KvplanError
from kvplan.machine.gpu_clock import GpuClockMeter
from kvplan.runs.store import SweepStore
from kvplan.runs.trials import Trial
from kvplan.sweeps.forecast.prediction import Predictor, TrialPrediction
from kvplan.sweeps.forecast.timing import TrialTimes
from kvplan.sweeps.forecast.under_load import UnderLoad
from kvplan.sweeps.progress import Progress
from kvplan.sweeps.rows import SweepIdentity, finished_record, row_before
from kvplan.sweeps.schedules.schedule import Schedule, Step, Steps
from kvplan.sweeps.worker.client import TimeLimits, Worker, WorkerDied, WorkerTimeout
from kvplan.sweeps.worker.protocol import TrialOrder
from kvplan.workload.requests import clip_requests

WorkerFactory = Callable[[], Worker]

# What a process dies of when code outside Python is refused memory, and from which share on that is believed.
_REFUSED_MEMORY_SIGNALS: Final = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS})
_FULL_SHARE: Final = 0.95
_TRIALS_PER_CSV: Final = 5
_MOST_RESTARTS: Final = 3


@dataclass(frozen=True, slots=True)
class EngineSource:
    """What a worker's engine is made of. ``path``: a config.json, a directory with weights, or a GGUF file."""

    path: str
    load_format: str
    vocab_size: int


class Runner:
    """Owns the current worker. ``run()`` may be interrupted by KeyboardInterrupt; ``close()`` ends the worker.

    expected: the trials that the schedule is expected to run, for the time left.
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
        source: EngineSource,
        make_worker: WorkerFactory,
        progress: Progress,
        limits: TimeLimits = TimeLimits(),
        timeout_seconds: float | None = None,
    ) -> None:
        self._schedule = schedule
        self._expected = {trial.trial_id: trial for trial in expected}
        self._store = store
        self._identity = identity
        self._source = source
        self._make_worker = make_worker
        self._progress = progress
        self._limits = limits
        self._worker: Worker | None = None
        self._load_key: tuple[str, str] | None = None
        self._memory_share = 0.0
        self._under = UnderLoad(identity.workload, predictor)
        self._times = TrialTimes(self._under, limits, timeout_seconds)
        self._clock = GpuClockMeter.open() if identity.device.kind == "cuda" else GpuClockMeter()

    def run(self) -> None:
        """Follow the schedule to its end. Rows that are stored already are answers, not trials to run again."""
        stored = {row["trial_id"]: row for row in self._store.rows}
        for trial_id in stored:
            self._expected.pop(trial_id, None)
        num_done = sum(row["status"] != "skipped_oom_dominated" for row in stored.values())
        self._progress.start(num_done, len(self._expected), self._seconds_left)
        steps = self._schedule.steps()
        try:
            step = next(steps, None)
            while step is not None:
                row = stored.get(step.trial.trial_id) or self._take(step)
                step = _send(steps, row)
        finally:
            self._progress.stop()

    @property
    def _seconds_left(self) -> float:
        return self._times.seconds_left(self._expected.values(), is_loaded=self._worker is not None)

    def _take(self, step: Step) -> dict[str, Any]:
        """Run (or only record) one step; its row is on the disk when this returns."""
        if step.skip_sentence is not None:
            return self._skip(step.trial, step.skip_sentence)
        row = self._run_one(step.trial)
        self._times.learn(row, step.trial.load)
        self._expected.pop(step.trial.trial_id, None)
        self._progress.trial_ended(row, len(self._expected), self._seconds_left)
        if len(self._store.records) % _TRIALS_PER_CSV == 0:
            self._store.write_results()
        return row

    def _skip(self, trial: Trial, sentence: str) -> dict[str, Any]:
        row = self._row_before(trial, self._under.predictor_of(trial.load).trial(trial.settings))
        record = finished_record(self._identity, row, {"status": "skipped_oom_dominated", "error": sentence}, None, 0.0)
        self._store.append(record)
        return record["row"]

    def close(self) -> None:
        """End the worker, politely; to be called whatever happened."""
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    def _run_one(self, trial: Trial) -> dict[str, Any]:
        prediction = self._under.predictor_of(trial.load).trial(trial.settings)
        row = self._row_before(trial, prediction)
        self._progress.trial_started(trial, prediction)
        started = time.monotonic()
        result = self._attempt(trial, self._times.limits_for(trial, prediction))
        record = finished_record(self._identity, row, result["row"], result["series"], time.monotonic() - started)
        self._store.append(record)
        return record["row"]

    def _attempt(self, trial: Trial, limits: TimeLimits) -> dict[str, Any]:
        """The worker's result, or a row of how it failed; begun anew a few times when somebody killed the worker."""
        order = self._order(trial)
        for num_restarts in range(_MOST_RESTARTS + 1):
            try:
                result = self._ask_worker(order, trial, limits)
            except WorkerDied as death:
                self._drop_worker()
                if death.signal_number == signal.SIGKILL and num_restarts < _MOST_RESTARTS:
                    continue
                result = {"row": _row_of_death(death, self._memory_share), "series": None}
            except WorkerTimeout as lateness:
                self._drop_worker()
                result = {"row": {"status": "timeout", "error": str(lateness)}, "series": None}
            break
        result["row"]["num_restarts"] = num_restarts
        return result

    def _row_before(self, trial: Trial, prediction: TrialPrediction) -> dict[str, Any]:
        clipped = clip_requests(self._under.requests_of(trial.load), trial.settings.max_model_len)
        workload = self._under.workload_of(trial.load)
        return row_before(self._identity, trial, workload, prediction, clipped.num_clipped)

    def _ask_worker(self, order: TrialOrder, trial: Trial, limits: TimeLimits) -> dict[str, Any]:
        worker = self._worker_for(trial)
        self._clock.start()
        result = worker.run_trial(order, limits, self._hear)
        result["row"] |= self._clock.figures()
        result["row"]["engine_version"] = worker.hello["engine_version"]
        if not result.get("worker_usable", True):
            self._drop_worker()
        return result

    def _hear(self, message: Mapping[str, Any]) -> None:
        self._memory_share = message.get("memory_share") or self._memory_share
        if message["type"] == "progress":
            self._clock.read()
        self._progress.event(message)

    def _worker_for(self, trial: Trial) -> Worker:
        """The current worker when its weights are the right ones, else a new one."""
        if self._worker is not None and self._load_key == trial.settings.load_key:
            return self._worker
        self._drop_worker()
        self._worker = self._make_worker()
        self._memory_share = 0.0
        self._load_key = trial.settings.load_key
        self._worker.wait_until_ready(self._limits)
        self._refuse_architecture(self._worker.hello)
        self._remember_versions(self._worker.hello)
        return self._worker

    def _refuse_architecture(self, hello: Mapping[str, Any]) -> None:
        """Not a trial's failure: no trial of this model can ever start."""
        architecture = self._under.predictor.spec.architecture
        known = hello.get("architectures")
        if known is not None and architecture not in known:
            raise KvplanError(
                f"kvplan's engine does not run {architecture} yet.",
                hint=f"it runs {', '.join(known)}; `kvplan estimate` sizes many more",
            )

    def _remember_versions(self, hello: Mapping[str, Any]) -> None:
        versions = self._store.read_manifest().get("versions", {})
        found = {"kvplan_engine": hello["engine_version"], "torch": hello["torch_version"]}
        if versions | found != versions:
            self._store.update_manifest({"versions": versions | found})

    def _drop_worker(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def _order(self, trial: Trial) -> TrialOrder:
        device = self._identity.device
        requests = clip_requests(self._under.requests_of(trial.load), trial.settings.max_model_len).requests
        return TrialOrder(
            trial_id=trial.trial_id,
            engine={
                "model": self._source.path,
                "device": device.kind,
                "device_memory": device.engine_memory_bytes,
                "load_format": self._source.load_format,
                "seed": self._identity.workload.seed,
            },
            settings=asdict(trial.settings),
            requests=requests,
            max_concurrency=self._under.workload_of(trial.load).max_concurrency,
            seed=self._identity.workload.seed,
            vocab_size=self._source.vocab_size,
            slo_ms=dict(self._identity.slo_ms),
        )


def _send(steps: Steps, row: Mapping[str, Any]) -> Step | None:
    try:
        return steps.send(row)
    except StopIteration:
        return None


def _row_of_death(death: WorkerDied, memory_share: float) -> dict[str, Any]:
    """A crash; or running out of memory, where a library that was refused memory took the process down with it."""
    if death.signal_number in _REFUSED_MEMORY_SIGNALS and memory_share >= _FULL_SHARE:
        error = f"{str(death).rstrip('.')} with {memory_share:.0%} of the device's memory in use."
        return {"status": "oom_runtime", "oom_phase": "runtime", "error": error}
    return {"status": "crash", "error": str(death)}
