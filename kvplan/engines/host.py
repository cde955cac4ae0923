"""Serves the trials of a sweep from an engine's server: started where a setting demands it, loaded, watched, ended.

A model directory without weights, for engines that make up random ones: its config, and a tokenizer of its size.

Prompts are token ids and what is generated is only counted, so the tokenizer's words mean nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvplan.catalog.spec import ModelSpec
from kvplan.engines.guards import ended_after, progress_to, signals_kept
from kvplan.engines.interface import Ending, EngineAdapter, Failure, LowersSettings, StartOrder, TellsSteps
from kvplan.engines.rows import failed_row, served_row, told_row
from kvplan.engines.server import EngineServer
from kvplan.engines.starter import Starter
from kvplan.engines.steps import steps_row
from kvplan.errors import KvplanError
from kvplan.load.client.body import RequestForm
from kvplan.load.run import LoadRun, run_load
from kvplan.load.target import Target
from kvplan.load.traffic.plan import TrafficPlan
from kvplan.load.traffic.prompts import PLAIN_SCALE, TokenPrompts
from kvplan.machine.host import CpuMeter, KillCounter
from kvplan.metrics.http import ServerAddress
from kvplan.runs.columns import Row
from kvplan.runs.directory import MODEL
from kvplan.runs.storage.files import write_whole
from kvplan.runs.trials import TrialSettings
from kvplan.sweeps.forecast.under_load import PreparedTrial
from kvplan.sweeps.hosts import OnEvent
from kvplan.sweeps.rows import SweepIdentity
from kvplan.sweeps.worker.client import TimeLimits
from kvplan.sweeps.worker.protocol import TrialResult

LOGS: Final = "engine-logs"
"""The folder of a run directory with the log of each trial's server."""


@dataclass(frozen=True, slots=True)
class Source:
    """What is served. path: of the weights; None for dummies, whose config is written into the run directory."""

    spec: ModelSpec
    path: Path | None
    directory: Path

    def model(self) -> str:
        """What the engine is told to load."""
        return str(self.path) if self.path is not None else str(write_dummy_model(self.spec, self.directory))


class EngineServerHost:
    """A TrialHost. One server at a time; it stays for the next trial if that has the same settings."""

    def __init__(self, adapter: EngineAdapter, identity: SweepIdentity, source: Source) -> None:
        self._adapter = adapter
        self._starter = Starter(adapter)
        self._identity = identity
        self._source = source
        self._server: EngineServer | None = None
        self._settings: TrialSettings | None = None
        self._is_lowered = False
        self._num_loads = 0
        self._refused_blocks: dict[int, Row] = {}

    @property
    def is_loaded(self) -> bool:
        return self._server is not None

    def run(self, prepared: PreparedTrial, limits: TimeLimits, on_event: OnEvent) -> TrialResult:
        """See TrialHost. KvplanError where every trial would fail alike: a command line that the engine refuses."""
        killer = KillCounter()
        is_reused = self._stays(prepared.trial.settings)
        row: Row = {"reused_server": is_reused}
        if not is_reused:
            block_size = prepared.trial.settings.block_size
            if (refused := self._refused_blocks.get(block_size)) is not None:  # whatever the other settings are
                return TrialResult(row | refused)
            on_event({"type": "stage", "stage": "loading", "memory_share": None})
            failure = self._start(prepared, limits, killer)
            if failure is not None and failure.get("status") == "rejected_block_size":
                self._refused_blocks[block_size] = failure
            if failure is not None:
                return TrialResult(row | failure)
        assert self._server is not None
        row |= told_row(self._server.told)
        if not is_reused:
            row |= {"start_seconds": self._server.start_seconds, "setup_seconds": self._server.start_seconds}
        row["preloaded_server"] = self._server.is_preloaded
        on_event({"type": "stage", "stage": "serving", "memory_share": None})
        return self._load(prepared, limits, on_event, row, killer)

    def close(self) -> None:
        """End the server and wait until nothing of it is left."""
        self._end_server()
        self._starter.close()

    def _end_server(self) -> None:
        if self._server is not None:
            self._server.stop()
        self._server = self._settings = None
        self._is_lowered = False

    def _stays(self, settings: TrialSettings) -> bool:
        """Whether the server that runs serves these settings too; what it can lower is lowered."""
        if self._server is None or self._settings is None:
            return False
        if self._settings == settings and not self._is_lowered:
            return True
        lowered = lowered_settings(self._adapter)
        same = self._settings.with_changes(**{name: getattr(settings, name) for name in lowered})
        smaller = all(getattr(settings, name) <= getattr(self._settings, name) for name in lowered)
        if same != settings or not smaller or not isinstance(self._adapter, LowersSettings):
            return False
        self._adapter.lower(self._source.directory / LOGS, settings)
        self._is_lowered = True
        return True

    def _start(self, prepared: PreparedTrial, limits: TimeLimits, killer: KillCounter) -> Row | None:
        """A new server for the trial; None if it is up, else the row of what went wrong."""
        self._end_server()
        trial = prepared.trial
        directory = self._source.directory / LOGS
        directory.mkdir(exist_ok=True)
        order = StartOrder(
            model=self._source.model(),
            settings=trial.settings,
            port=0,
            directory=directory,
            load_format=self._identity.load_format,
            seed=prepared.workload.seed,
        )
        if isinstance(self._adapter, LowersSettings) and self._adapter.lowered:
            self._adapter.lower(directory, trial.settings)
        log = directory / f"{trial.trial_id}.log"
        server = self._starter.start(order, log)
        self._server, self._settings = server, trial.settings
        readiness = server.wait_until_ready(limits.starting + limits.loading + limits.setup)
        if readiness.seconds is not None:
            return self._too_short(trial.settings)
        ending = Ending("starting", server.exit_code, server.log(), killer.has_killed())
        self._end_server()
        if readiness.is_late:
            seconds = limits.starting + limits.loading + limits.setup
            return {"status": "timeout", "error": f"{self._adapter.name} was not up after {seconds:.0f} s."}
        failure = self._adapter.failure(ending)
        if server.is_preloaded and failure.status == "crash":
            self._starter.give_up_preload()  # so that no failure comes of it
            return self._start(prepared, limits, killer)
        return self._failed(failure)

    def _too_short(self, settings: TrialSettings) -> Row | None:
        """The row of a server that is up, but takes shorter sequences than it was asked to; None for one that does."""
        assert self._server is not None
        longest = self._server.told.resolved.get("max_model_len")
        if not isinstance(longest, int) or longest >= settings.max_model_len:
            return None
        self._end_server()
        error = f"{self._adapter.name} takes sequences of {longest:,} tokens at most, not {settings.max_model_len:,}."
        return failed_row(Failure("rejected_ctx", error, largest_max_model_len=longest))

    def _failed(self, failure: Failure) -> Row:
        if failure.stops_sweep:
            raise KvplanError(failure.error.rstrip(".") + ".", hint="check --engine-arg")
        return failed_row(failure)

    def _load(
        self, prepared: PreparedTrial, limits: TimeLimits, on_event: OnEvent, row: Row, killer: KillCounter
    ) -> TrialResult:
        server = self._server
        assert server is not None
        meter = CpuMeter(server.cpu_seconds)
        adapter = self._adapter
        log = adapter.step_log(self._source.directory / LOGS) if isinstance(adapter, TellsSteps) else None
        before = log.end() if log else 0
        with signals_kept(), ended_after(server, limits.serving) as overdue:
            run = self._run(server, prepared, limits, on_event)
        other_cpu_pct = meter.other_cpu_pct()
        if run.interrupted:
            raise KeyboardInterrupt
        if overdue.is_set():
            self._end_server()
            error = f"The trial was ended: serving took over {limits.serving:.0f} s."
            return TrialResult(row | {"status": "timeout", "error": error})
        served = served_row(run, prepared, self._identity.slo_seconds, row.get("kv_cache_tokens"))
        served["other_cpu_pct"] = other_cpu_pct
        if log:
            served |= steps_row(log.steps_from(before))
        if served["status"] != "failed" or server.is_alive():
            return TrialResult(row | served, run.series, requests=run.requests(prepared.trial.trial_id))
        ending = Ending("serving", server.exit_code, server.log(), killer.has_killed())
        self._end_server()
        return TrialResult(row | served | self._failed(self._adapter.failure(ending)))

    def _run(self, server: EngineServer, prepared: PreparedTrial, limits: TimeLimits, on_event: OnEvent) -> LoadRun:
        requests = prepared.prediction.requests.requests
        workload = prepared.workload
        self._num_loads += 1
        total = sum(request.num_output_tokens for request in requests)

        form = RequestForm(ServerAddress.parse(server.url), "completions", server.model_name)
        plan = TrafficPlan(
            workload=workload,
            max_in_flight=workload.max_concurrency,
            has_times=prepared.last_arrival_seconds > 0,
            drawn=requests,
        )
        # A server that stays knows the prompts of earlier loads; other tokens of the same lengths are new to it.
        tokens = TokenPrompts(workload.seed + self._num_loads - 1, self._source.spec.vocab_size)
        return run_load(
            Target(form, PLAIN_SCALE, None),
            plan,
            timeout_seconds=limits.serving,
            tokens=tokens,
            on_progress=progress_to(on_event, total),
        )


def lowered_settings(adapter: EngineAdapter) -> frozenset[str]:
    """The settings that a running server of this adapter can lower."""
    return adapter.lowered if isinstance(adapter, LowersSettings) else frozenset()


def write_dummy_model(spec: ModelSpec, directory: Path) -> Path:
    """Write it into a run directory, and say where."""
    folder = (directory / MODEL).resolve()
    folder.mkdir(exist_ok=True)
    write_whole(folder / "config.json", json.dumps(dict(spec.raw_config), indent=2) + "\n")
    write_whole(folder / "tokenizer.json", json.dumps(_word_tokenizer(spec.vocab_size)) + "\n")
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t0", "eos_token": "t0"}
    write_whole(folder / "tokenizer_config.json", json.dumps(kind) + "\n")
    return folder


def _word_tokenizer(vocab_size: int) -> dict[str, object]:
    """A word for each token: ``t0 t1 t2``."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {f"t{number}": number for number in range(vocab_size)},
            "unk_token": "t0",
        },
    }
