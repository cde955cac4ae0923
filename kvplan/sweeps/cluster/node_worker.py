"""What runs on a node of a cluster, in a process of its own: it looks at the device there, and serves trials on it."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from kvplan import __version__
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.machine.device import Device, detect_device
from kvplan.runs.directory import WORKER_LOG
from kvplan.sweeps.capacity import counted_device
from kvplan.sweeps.forecast.under_load import PreparedTrial
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.rows import SweepIdentity
from kvplan.sweeps.weights import weights_path
from kvplan.sweeps.worker.client import TimeLimits, Worker
from kvplan.sweeps.worker.early import ask_own_worker
from kvplan.sweeps.worker.protocol import Event, TrialResult
from kvplan.sweeps.worker_host import WorkerHost, engine_source


@dataclass(frozen=True, slots=True)
class Task:
    """What all trials of a sweep have in common, as a node needs it. load_format: resolved."""

    identity: SweepIdentity
    spec: ModelSpec
    options: SweepOptions
    load_format: str


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a node is: its device where there is one, its host name, and kvplan's version there.

    problem: why it has no such device, or not the weights.
    """

    node: str
    version: str
    device: Device | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ServedTrial:
    """A trial's result and what served it; problem, hint: of what no trial can overcome, in the place of a result."""

    result: TrialResult | None
    versions: dict[str, str]
    problem: str | None = None
    hint: str | None = None


class NodeWorker:
    """Two threads call it: one waits in ``run``, the other asks for ``latest`` meanwhile."""

    def __init__(self) -> None:
        self._host: WorkerHost | None = None
        self._directory: Path | None = None
        self._latest: Event | None = None
        self._versions: dict[str, str] = {}

    def look(
        self, options: SweepOptions, weight_bytes: int, memory_bytes: int | None, needs_weights: bool
    ) -> NodeReport:
        """The device that ``options`` ask for. memory_bytes: what it is to have, None for what it has."""
        node = platform.node()
        if needs_weights and weights_path(options) is None:
            return NodeReport(node, __version__, problem=f"There are no weights at '{options.model}'.")
        try:
            device = counted_device(options) if options.is_counted else _device(options, weight_bytes, memory_bytes)
        except KvplanError as error:
            return NodeReport(node, __version__, problem=error.message)
        # Which of its GPUs a worker gets is the cluster's affair: each looks for the first one that it may use.
        return NodeReport(node, __version__, replace(device, uuid=""))

    def prepare(self, task: Task) -> None:
        """Make ready for the trials of a sweep; the worker itself starts with the first."""
        if task.identity.device.kind == "cuda":
            os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it to the actor's share of the CPUs
        self._directory = Path(tempfile.mkdtemp(prefix="kvplan-"))
        log_path = self._directory / WORKER_LOG
        source = engine_source(task.options, task.spec, task.load_format, self._directory)
        self._host = WorkerHost(
            task.identity, task.spec, source, lambda: Worker.start(log_path), on_versions=self._versions.update
        )

    def run(self, prepared: PreparedTrial, limits: TimeLimits) -> ServedTrial:
        assert self._host is not None, "run before prepare"
        self._latest = None
        try:
            result = self._host.run(prepared, limits, self._note)
        except KvplanError as error:
            return ServedTrial(None, {}, error.message, error.hint)
        result.row["node"] = platform.node()
        return ServedTrial(result, self._versions)

    def latest(self) -> Event | None:
        """The last event of the trial that runs."""
        return self._latest

    def close(self) -> None:
        if self._host is not None:
            self._host.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _note(self, event: Event) -> None:
        self._latest = event


def _device(options: SweepOptions, weight_bytes: int, memory_bytes: int | None) -> Device:
    return detect_device(
        options.device,
        memory_bytes or options.device_memory_bytes(),
        weight_bytes=weight_bytes,
        must_be_free=not options.shares_layers,
        ask=ask_own_worker,
    )
