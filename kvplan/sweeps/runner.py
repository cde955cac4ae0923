"""Runs the trials of a sweep, one after the other, whatever becomes of each of them.

The worker keeps its weights from trial to trial. A worker that dies costs the trial it was running: that row is a
``crash``, and the next trial gets a new worker. A worker that was killed (SIGKILL, which it never causes itself) says
nothing about its trial, which is restarted; the row says how often. A row is on disk before the next trial starts.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvplan.machine.device import Device
from kvplan.machine.gpu_clock import ClockReadings, GpuClockMeter
from kvplan.runs.columns import Row
from kvplan.runs.setting_text import ALWAYS_SHOWN
from kvplan.runs.store import SweepStore
from kvplan.runs.trials import Trial
from kvplan.sweeps.feasibility import refuse_architecture
from kvplan.sweeps.forecast.prediction import Predictor
from kvplan.sweeps.forecast.timing import TrialTimes
from kvplan.sweeps.forecast.under_load import PreparedTrial, UnderLoad
from kvplan.sweeps.progress import Progress
from kvplan.sweeps.rows import SweepIdentity, finished_record, row_before
from kvplan.sweeps.schedules.schedule import Schedule, Step, Steps
from kvplan.sweeps.worker.client import TimeLimits, Worker
from kvplan.sweeps.worker.protocol import Event, Hello, TrialOrder, TrialResult
from kvplan.workers.process import WorkerDied, WorkerTimeout

WorkerFactory = Callable[[], Worker]

# Signals that end a process whose native code is refused memory, and the share of memory from which that is believed.
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
    dummy_layers: str = "full"
    model_impl: str = "auto"


class Runner:
    """Owns the current worker. ``run()`` may be interrupted by KeyboardInterrupt; ``close()`` ends the worker.

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
        source: EngineSource,
        make_worker: WorkerFactory,
        progress: Progress,
        shown: Sequence[str] = ALWAYS_SHOWN,
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
        self._shown = shown
        self._limits = limits
        self._worker: Worker | None = None
        self._load_key: tuple[str, str] | None = None
        self._memory_share = 0.0
        self._under = UnderLoad(identity.workload, predictor)
        self._times = TrialTimes(self._under, limits, timeout_seconds)
        is_on_gpu = identity.device.kind == "cuda" and not identity.is_counted
        self._clock = GpuClockMeter.open() if is_on_gpu else GpuClockMeter()

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
        """End the worker, politely; to be called whatever happened."""
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    @property
    def _seconds_left(self) -> float:
        return self._times.seconds_left(self._expected.values(), is_loaded=self._worker is not None)

    def _take(self, step: Step) -> Row:
        """Run one step, or only record it; its row is on disk when this returns."""
        prepared = self._under.prepare(step.trial)
        if step.skip_sentence is not None:
            return self._skip(prepared, step.skip_sentence)
        row = self._run_one(prepared)
        self._times.learn(row, prepared)
        self._expected.pop(step.trial.trial_id, None)
        self._progress.trial_ended(row, len(self._expected), self._seconds_left)
        if len(self._store.records) % _TRIALS_PER_CSV == 0:
            self._store.write_results()
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
        result = self._attempt(prepared)
        record = finished_record(self._identity, row, result.row, result.series, time.monotonic() - started)
        self._store.append(record)
        return record["row"]

    def _attempt(self, prepared: PreparedTrial) -> TrialResult:
        """The worker's result, or a row that says how it failed; restarted a few times if someone killed the worker."""
        identity = self._identity
        published = identity.has_published_weights
        order = make_order(
            prepared,
            identity.device,
            self._source,
            slo_seconds=identity.slo_seconds,
            weight_bytes=prepared.predictor.memory(prepared.trial.settings).weight_bytes if published else None,
        )
        limits = self._times.limits_for(prepared)
        for num_restarts in range(_MOST_RESTARTS + 1):
            try:
                result = self._ask_worker(order, prepared.trial, limits)
            except WorkerDied as death:
                self._drop_worker()
                if death.signal_number == signal.SIGKILL and num_restarts < _MOST_RESTARTS:
                    continue
                result = TrialResult(_row_of_death(death, self._memory_share))
            except WorkerTimeout as timeout:
                self._drop_worker()
                result = TrialResult({"status": "timeout", "error": str(timeout)})
            break
        result.row["num_restarts"] = num_restarts
        return result

    def _ask_worker(self, order: TrialOrder, trial: Trial, limits: TimeLimits) -> TrialResult:
        worker, hello = self._worker_for(trial)
        self._clock.start()
        result = worker.run_trial(order, limits, self._on_event)
        result.row |= _clock_columns(self._clock.readings())
        result.row["engine_version"] = hello["engine_version"]
        if not result.worker_usable:
            self._drop_worker()
        return result

    def _on_event(self, event: Event) -> None:
        self._memory_share = event.get("memory_share") or self._memory_share
        if event["type"] == "progress":
            self._clock.read()
        self._progress.event(event)

    def _worker_for(self, trial: Trial) -> tuple[Worker, Hello]:
        """The current worker if it has the weights for this trial, else a new one."""
        if self._worker is not None and self._load_key == trial.settings.load_key:
            return self._worker, self._worker.wait_until_ready(self._limits)
        self._drop_worker()
        self._worker = self._make_worker()
        self._memory_share = 0.0
        self._load_key = trial.settings.load_key
        hello = self._worker.wait_until_ready(self._limits)
        known = hello["known_architectures"] if self._identity.is_counted else hello["architectures"]
        refuse_architecture(self._under.predictor.spec.architecture, known, model_impl=self._identity.model_impl)
        self._record_versions(hello)
        return self._worker, hello

    def _record_versions(self, hello: Hello) -> None:
        versions = self._store.read_manifest().get("versions", {})
        new = {"kvplan_engine": hello["engine_version"], "torch": hello["torch_version"]}
        if versions | new != versions:
            self._store.update_manifest({"versions": versions | new})

    def _drop_worker(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


def make_order(
    prepared: PreparedTrial,
    device: Device,
    source: EngineSource,
    *,
    slo_seconds: Mapping[str, float] | None = None,
    weight_bytes: int | None = None,
) -> TrialOrder:
    """What a worker is told of a trial. weight_bytes: to account for, where the engine does not count them itself."""
    seed = prepared.workload.seed
    return TrialOrder(
        trial_id=prepared.trial.trial_id,
        engine={
            "model": source.path,
            "device": device.kind,
            "device_memory": device.engine_memory_bytes,
            "load_format": source.load_format,
            **({} if source.dummy_layers == "full" else {"dummy_layers": source.dummy_layers}),
            **({} if source.model_impl == "auto" else {"model_impl": source.model_impl}),
            "seed": seed,
            **({} if weight_bytes is None else {"weight_bytes": weight_bytes}),
        },
        settings=prepared.trial.settings.as_json(),
        requests=prepared.prediction.requests.requests,
        max_concurrency=prepared.workload.max_concurrency,
        seed=seed,
        vocab_size=source.vocab_size,
        slo_seconds=dict(slo_seconds or {}),
    )


def _send(steps: Steps, row: Row) -> Step | None:
    try:
        return steps.send(row)
    except StopIteration:
        return None


def _clock_columns(clock: ClockReadings) -> Row:
    return {
        "gpu_clock_mean_mhz": clock.mean_mhz,
        "gpu_clock_min_mhz": clock.min_mhz,
        "gpu_clock_pct": clock.pct_of_max,
    }


def _row_of_death(death: WorkerDied, memory_share: float) -> Row:
    """A crash; or running out of memory, if a library that was refused memory took the process down with it."""
    if death.signal_number in _REFUSED_MEMORY_SIGNALS and memory_share >= _FULL_SHARE:
        error = f"{str(death).rstrip('.')} with {memory_share:.0%} of the device's memory in use."
        return {"status": "oom_runtime", "oom_phase": "runtime", "error": error}
    return {"status": "crash", "error": str(death)}
