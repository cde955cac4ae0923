"""Runs the trials of a sweep, one after the other, whatever becomes of each of them.

The worker keeps its weights from trial to trial. A worker that dies costs the trial it was running: that row is a
``crash``, and the next trial gets a new worker. A row is on the disk before the next trial starts.
"""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from kvplan.catalog.statuses import MEASURED_STATUSES
from kvplan.errors import KvplanError
from kvplan.sweeps.prediction import Predictor, TrialPrediction
from kvplan.sweeps.progress import Progress
from kvplan.sweeps.protocol import TrialOrder
from kvplan.sweeps.rows import SweepIdentity, finished_record, row_before
from kvplan.sweeps.schedule import Schedule, Step, Steps
from kvplan.sweeps.store import SweepStore
from kvplan.sweeps.trial import Trial, TrialSettings
from kvplan.sweeps.worker_client import TimeLimits, Worker, WorkerDied, WorkerTimeout
from kvplan.sweeps.workload import clip_requests

WorkerFactory = Callable[[], Worker]

SECONDS_PER_TRIAL: Final = 0.3  # carving a pool, sending requests, writing the row
SECONDS_PER_LOAD: Final = 6.0  # importing torch and filling a small model's weights
_SLOWNESS: Final = 30  # how many times slower than predicted a trial may be: a shared machine can be that busy
_SLOWEST_LOAD_BYTES_PER_SECOND: Final = 50e6
# What a process dies of when code outside Python is refused memory, and from which share on that is believed.
_REFUSED_MEMORY_SIGNALS: Final = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS})
_FULL_SHARE: Final = 0.95
_TRIALS_PER_CSV: Final = 5


@dataclass(frozen=True, slots=True)
class EngineSource:
    """What a worker's engine is made of. ``path``: a config.json, a directory with weights, or a GGUF file."""

    path: str
    load_format: str
    vocab_size: int


class Runner:
    """Owns the current worker. ``run()`` may be interrupted by KeyboardInterrupt; ``close()`` ends the worker.

    expected: the trials that the schedule is expected to run, for the time left.
    limits: what each stage gets on top of its prediction. timeout_seconds: longest time to serve a trial; None
    derives it from the trial's prediction.
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
        self._predictor = predictor
        self._identity = identity
        self._source = source
        self._make_worker = make_worker
        self._progress = progress
        self._limits = limits
        self._timeout_seconds = timeout_seconds
        self._worker: Worker | None = None
        self._load_key: tuple[str, str] | None = None
        self._time_ratios: list[float] = []
        self._memory_share = 0.0
        self._unscaled_seconds: dict[TrialSettings, float] = {}

    def run(self) -> None:
        """Follow the schedule to its end. Rows that are stored already are answers, not trials to run again."""
        stored = {row["trial_id"]: row for row in self._store.rows}
        for trial_id in stored:
            self._expected.pop(trial_id, None)
        num_done = sum(row["status"] != "skipped_oom_dominated" for row in stored.values())
        self._progress.start(num_done, len(self._expected), self._seconds_left())
        steps = self._schedule.steps()
        try:
            step = next(steps, None)
            while step is not None:
                row = stored.get(step.trial.trial_id) or self._take(step)
                step = _send(steps, row)
        finally:
            self._progress.stop()

    def _take(self, step: Step) -> dict[str, Any]:
        """Run (or only record) one step; its row is on the disk when this returns."""
        if step.skip_sentence is not None:
            return self._skip(step.trial, step.skip_sentence)
        row = self._run_one(step.trial)
        self._learn_time(row)
        self._expected.pop(step.trial.trial_id, None)
        self._progress.trial_ended(row, len(self._expected), self._seconds_left())
        if len(self._store.records) % _TRIALS_PER_CSV == 0:
            self._store.write_results()
        return row

    def _skip(self, trial: Trial, sentence: str) -> dict[str, Any]:
        row = self._row_before(trial, self._predictor.trial(trial.settings))
        record = finished_record(self._identity, row, {"status": "skipped_oom_dominated", "error": sentence}, None, 0.0)
        self._store.append(record)
        return record["row"]

    def close(self) -> None:
        """End the worker, politely; to be called whatever happened."""
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    def _run_one(self, trial: Trial) -> dict[str, Any]:
        prediction = self._predictor.trial(trial.settings)
        row = self._row_before(trial, prediction)
        self._progress.trial_started(trial, prediction)
        order = self._order(trial)
        started = time.monotonic()
        try:
            result = self._ask_worker(order, trial, self._limits_for(trial, prediction))
        except WorkerDied as death:
            self._drop_worker()
            result = {"row": _row_of_death(death, self._memory_share), "series": None}
        except WorkerTimeout as lateness:
            self._drop_worker()
            result = {"row": {"status": "timeout", "error": str(lateness)}, "series": None}
        record = finished_record(self._identity, row, result["row"], result["series"], time.monotonic() - started)
        self._store.append(record)
        return record["row"]

    def _row_before(self, trial: Trial, prediction: TrialPrediction) -> dict[str, Any]:
        clipped = clip_requests(self._predictor.requests, trial.settings.max_model_len)
        return row_before(self._identity, trial, prediction, clipped.num_clipped)

    def _ask_worker(self, order: TrialOrder, trial: Trial, limits: TimeLimits) -> dict[str, Any]:
        worker = self._worker_for(trial)
        result = worker.run_trial(order, limits, self._hear)
        result["row"]["engine_version"] = worker.hello["engine_version"]
        if not result.get("worker_usable", True):
            self._drop_worker()
        return result

    def _hear(self, message: Mapping[str, Any]) -> None:
        self._memory_share = message.get("memory_share") or self._memory_share
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
        architecture = self._predictor.spec.architecture
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
        requests = clip_requests(self._predictor.requests, trial.settings.max_model_len).requests
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
            max_concurrency=self._identity.workload.max_concurrency,
            seed=self._identity.workload.seed,
            vocab_size=self._source.vocab_size,
            slo_ms=dict(self._identity.slo_ms),
        )

    def _limits_for(self, trial: Trial, prediction: TrialPrediction) -> TimeLimits:
        """Every stage may take many times its prediction: predictions of time are rough, and machines are shared."""
        memory = self._predictor.memory(trial.settings)
        step = _SLOWNESS * self._predictor.largest_step_seconds(trial.settings)
        arrivals = max((request.arrival_seconds for request in self._predictor.requests), default=0.0)
        serving = self._limits.serving + arrivals + _SLOWNESS * prediction.seconds
        return TimeLimits(
            starting=self._limits.starting,
            loading=self._limits.loading + memory.weight_bytes / _SLOWEST_LOAD_BYTES_PER_SECOND + 3 * step,
            setup=self._limits.setup + 3 * step,
            warmup=self._limits.warmup + 3 * step,
            serving=serving if self._timeout_seconds is None else self._timeout_seconds,
            silence=self._limits.silence + arrivals + step,
        )

    def _learn_time(self, row: Mapping[str, Any]) -> None:
        """Scale the prediction of time by what was measured, so that the time left is right from the first trial on."""
        if row["status"] in MEASURED_STATUSES and row["predicted_seconds"]:
            self._time_ratios.append(row["duration"] / row["predicted_seconds"] * self._predictor.time_scale)
            self._predictor = self._predictor.with_time_scale(statistics.median(self._time_ratios[-9:]))

    def _seconds_left(self) -> float:
        trials = self._expected.values()
        load = SECONDS_PER_LOAD if self._worker is None and trials else 0.0
        serving = sum(self._unscaled(trial.settings) for trial in trials) * self._predictor.time_scale
        return load + serving + SECONDS_PER_TRIAL * len(trials)

    def _unscaled(self, settings: TrialSettings) -> float:
        """A trial's predicted seconds before anything was measured; forecasts of long workloads are not free."""
        if settings not in self._unscaled_seconds:
            self._unscaled_seconds[settings] = self._predictor.with_time_scale(1.0).trial(settings).seconds
        return self._unscaled_seconds[settings]


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
