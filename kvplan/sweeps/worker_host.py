"""The sweep's own engine as the host of its trials: a worker process that is made, asked, and made again.

The worker keeps its weights from trial to trial. A worker that dies costs the trial it was running: that row is a
``crash``, and the next trial gets a new worker. A worker that was killed (SIGKILL, which it never causes itself) says
nothing about its trial, which is restarted; the row says how often. But one that the kernel killed for memory would be
killed again.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from kvplan.catalog.spec import ModelSpec
from kvplan.machine.device import Device, Reserve
from kvplan.machine.host import KillCounter
from kvplan.machine.visible_gpu import ClockReadings, GpuClockMeter
from kvplan.runs.columns import Row
from kvplan.runs.directory import MODEL
from kvplan.runs.storage.files import write_whole
from kvplan.runs.trials import LoadKey, Trial
from kvplan.sweeps.drafting import AXIS as DRAFTS_AXIS
from kvplan.sweeps.drafting import engine_config, loads_draft_model
from kvplan.sweeps.feasibility import refuse_architecture
from kvplan.sweeps.forecast.under_load import PreparedTrial
from kvplan.sweeps.hosts import OnEvent
from kvplan.sweeps.options import COUNTED_FORMAT, SweepOptions
from kvplan.sweeps.rows import SweepIdentity
from kvplan.sweeps.weights import weights_path
from kvplan.sweeps.worker.client import TimeLimits, Worker
from kvplan.sweeps.worker.protocol import Event, Hello, TrialOrder, TrialResult
from kvplan.workers.process import WorkerDied, WorkerTimeout

WorkerFactory = Callable[[], Worker]

# Signals that end a process whose native code is refused memory, and the share of memory from which that is believed.
_REFUSED_MEMORY_SIGNALS: Final = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS})
_FULL_SHARE: Final = 0.95
_MOST_RESTARTS: Final = 3
_OUT_OF_HOST_MEMORY: Final = "The kernel killed the worker: this machine's memory ran out. Give less --device-memory."


@dataclass(frozen=True, slots=True)
class EngineSource:
    """What a worker's engine is made of. ``path``: a config.json, a directory with weights, or a GGUF file."""

    path: str
    load_format: str
    vocab_size: int
    dummy_layers: str = "full"
    model_impl: str = "auto"
    activation_quantization: str = "none"
    speculative_config: str | None = None


def engine_source(options: SweepOptions, spec: ModelSpec, load_format: str, directory: Path) -> EngineSource:
    """The weights' path; for dummy weights, or none, that of the config, which is written into the run directory."""
    weights = None if load_format in ("dummy", COUNTED_FORMAT) else weights_path(options)
    names = ("model_impl", "activation_quantization", "speculative_config")
    chosen = {name: getattr(options, name) for name in names}
    if weights is not None:
        return EngineSource(str(weights), load_format, spec.vocab_size, **chosen)
    model_directory = (directory / MODEL).resolve()
    model_directory.mkdir(exist_ok=True)
    config = model_directory / "config.json"
    write_whole(config, json.dumps(dict(spec.raw_config), indent=2) + "\n")
    return EngineSource(str(config), load_format, spec.vocab_size, options.dummy_layers, **chosen)


class WorkerHost:
    """Owns the current worker.

    on_versions: told what a new worker runs, by name. limits: how long a worker may take to start.
    """

    def __init__(
        self,
        identity: SweepIdentity,
        spec: ModelSpec,
        source: EngineSource,
        make_worker: WorkerFactory,
        *,
        on_versions: Callable[[dict[str, str]], None] = lambda versions: None,
        limits: TimeLimits = TimeLimits(),
    ) -> None:
        self._identity = identity
        self._spec = spec
        self._source = source
        self._make_worker = make_worker
        self._on_versions = on_versions
        self._limits = limits
        self._worker: Worker | None = None
        self._load_key: tuple[LoadKey, bool] | None = None
        self._memory_share = 0.0
        self._told: set[str] = set()
        is_on_gpu = identity.device.kind == "cuda" and not identity.is_counted
        self._clock = GpuClockMeter.open(identity.device.uuid) if is_on_gpu else GpuClockMeter()

    @property
    def is_loaded(self) -> bool:
        """Whether a worker is there, with weights."""
        return self._worker is not None

    def first_reserve(self, prepared: PreparedTrial, limits: TimeLimits, on_event: OnEvent) -> Reserve | None:
        """What the engine would keep free of its GPU for a trial, once it is loaded; None where it does not say."""
        try:
            worker, _ = self._worker_for(prepared.trial)
            return worker.ask_reserve(self._order(prepared), limits, lambda message: self._show(message, on_event))
        except (WorkerDied, WorkerTimeout):  # as the trial will, and its row says why
            self._drop_worker()
            return None

    def _order(self, prepared: PreparedTrial) -> TrialOrder:
        identity = self._identity
        return make_order(
            prepared,
            identity.device,
            self._source,
            slo_seconds=identity.slo_seconds,
            has_published_weights=identity.has_published_weights,
        )

    def run(self, prepared: PreparedTrial, limits: TimeLimits, on_event: OnEvent) -> TrialResult:
        """The worker's result, or a row that says how it failed; restarted a few times if someone killed the worker."""
        order = self._order(prepared)
        killer = KillCounter()
        for num_restarts in range(_MOST_RESTARTS + 1):
            try:
                result = self._ask_worker(order, prepared.trial, limits, on_event)
            except WorkerDied as death:
                self._drop_worker()
                is_killed = death.signal_number == signal.SIGKILL
                if is_killed and killer.has_killed():
                    result = TrialResult({"status": "crash", "error": _OUT_OF_HOST_MEMORY})
                elif is_killed and num_restarts < _MOST_RESTARTS:
                    continue
                else:
                    result = TrialResult(_row_of_death(death, self._memory_share))
            except WorkerTimeout as timeout:
                self._drop_worker()
                result = TrialResult({"status": "timeout", "error": str(timeout)})
            break
        result.row["num_restarts"] = num_restarts
        return result

    def close(self) -> None:
        """End the worker, politely."""
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    def _ask_worker(self, order: TrialOrder, trial: Trial, limits: TimeLimits, on_event: OnEvent) -> TrialResult:
        worker, hello = self._worker_for(trial)
        self._clock.start()

        def watch(message: Event) -> None:
            if message["type"] != "notice":
                self._memory_share = message.get("memory_share") or self._memory_share
            if message["type"] == "progress":
                self._clock.read()
            self._show(message, on_event)

        result = worker.run_trial(order, limits, watch)
        result.row |= _clock_columns(self._clock.readings())
        result.row["engine_version"] = hello["engine_version"]
        if not result.worker_usable:
            self._drop_worker()
        return result

    def _show(self, message: Event, on_event: OnEvent) -> None:
        """Each notice once, however many processes say it."""
        if message["type"] == "notice":
            if message["text"] in self._told:
                return
            self._told.add(message["text"])
        on_event(message)

    def _worker_for(self, trial: Trial) -> tuple[Worker, Hello]:
        """The current worker if it has the weights for this trial, or needs none, else a new one."""
        settings = trial.settings
        drafts = loads_draft_model(self._source.speculative_config, settings.num_speculative_tokens)
        load_key = settings.load_key, drafts
        is_loaded = self._identity.is_counted or self._load_key == load_key
        if self._worker is not None and is_loaded:
            return self._worker, self._worker.wait_until_ready(self._limits)
        self._drop_worker()
        self._worker = self._make_worker()
        self._memory_share = 0.0
        self._load_key = load_key
        hello = self._worker.wait_until_ready(self._limits)
        known = hello["known_architectures"] if self._identity.is_counted else hello["architectures"]
        refuse_architecture(self._spec.architecture, known, model_impl=self._identity.model_impl)
        self._on_versions({"kvplan_engine": hello["engine_version"], "torch": hello["torch_version"]})
        return self._worker, hello

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
    has_published_weights: bool = False,
) -> TrialOrder:
    """What a worker is told of a trial. has_published_weights: see SweepIdentity."""
    seed, rounded = prepared.workload.seed, source.activation_quantization
    weight_bytes = None
    if has_published_weights and prepared.trial.settings.quantization == "auto":
        weight_bytes = prepared.prediction.weight_bytes - prepared.prediction.adapter_bytes
    deployed, settings = prepared.prediction.deployed, prepared.trial.settings.engine_arguments()
    if deployed is not None:  # what is held in which format is in the account
        weight_bytes = None
        settings = {name: value for name, value in settings.items() if name not in ("quantization", "group_size")}
        settings |= {"dtype": deployed.dtype, "kv_cache_dtype": deployed.engine_kv_cache_dtype}
    num_drafts = settings.pop(DRAFTS_AXIS, 0)
    if source.speculative_config is not None:  # None too is told: the trial before may have had drafts
        settings["speculative_config"] = engine_config(source.speculative_config, num_drafts) if num_drafts else None
    return TrialOrder(
        trial_id=prepared.trial.trial_id,
        engine={
            "model": source.path,
            "device": device.kind,
            "device_memory": device.engine_memory_bytes,
            "load_format": source.load_format,
            **({} if source.dummy_layers == "full" else {"dummy_layers": source.dummy_layers}),
            **({} if source.model_impl == "auto" else {"model_impl": source.model_impl}),
            **({} if rounded == "none" else {"activation_quantization": rounded}),
            "seed": seed,
            **({} if weight_bytes is None else {"weight_bytes": weight_bytes}),
            **({} if deployed is None else {"rank_accounts": [asdict(rank) for rank in deployed.ranks]}),
        },
        settings=settings,
        requests=prepared.prediction.requests.requests,
        max_concurrency=prepared.workload.max_concurrency,
        seed=seed,
        vocab_size=source.vocab_size,
        slo_seconds=dict(slo_seconds or {}),
    )


def _clock_columns(clock: ClockReadings) -> Row:
    return {
        "gpu_clock_mean_mhz": clock.mean_mhz,
        "gpu_clock_min_mhz": clock.min_mhz,
        "gpu_clock_pct": clock.pct_of_max,
    }


def _row_of_death(death: WorkerDied, memory_share: float) -> Row:
    """A crash; or running out of memory, if a library that was refused memory took the process down with it."""
    if death.signal_number in _REFUSED_MEMORY_SIGNALS and memory_share >= _FULL_SHARE:
        error = f"{str(death).rstrip('.')} with {100 * memory_share:.0f} % of the device's memory in use."
        return {"status": "oom_runtime", "oom_phase": "runtime", "error": error}
    return {"status": "crash", "error": str(death)}
