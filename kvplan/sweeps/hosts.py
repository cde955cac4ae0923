"""What serves the trials of a sweep: kvplan's own engine in a worker, or another engine behind HTTP."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from kvplan.catalog.spec import ModelSpec
from kvplan.machine.device import Device
from kvplan.sweeps.forecast.pool import EngineModel
from kvplan.sweeps.forecast.under_load import PreparedTrial
from kvplan.sweeps.rows import SweepIdentity
from kvplan.sweeps.worker.client import TimeLimits
from kvplan.sweeps.worker.protocol import Event, TrialResult

OnEvent = Callable[[Event], None]


class TrialHost(Protocol):
    """Keeps between trials what the next one can use, and gives everything back when it is closed."""

    @property
    def is_loaded(self) -> bool:
        """Whether the next trial can do without loading weights."""

    def run(self, prepared: PreparedTrial, limits: TimeLimits, on_event: OnEvent) -> TrialResult:
        """Serve one trial, whatever becomes of it: a failure is a row with its status. on_event: progress.

        KvplanError for what no trial can overcome.
        """

    def close(self) -> None:
        """End everything that was started."""


class SweptEngine(Protocol):
    """An engine other than kvplan's own, as a sweep plans with it and starts it."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str | None: ...

    @property
    def notices(self) -> tuple[str, ...]:
        """Lines for the user, before anything runs."""

    def refuse(self, axes: Collection[str]) -> None:
        """UsageError for an axis that the engine does not have."""

    def device(self, memory_bytes: int | None) -> Device:
        """What it computes on. KvplanError where that is not here."""

    def model(self, spec: ModelSpec, device: Device) -> EngineModel:
        """What is expected of it."""

    def host(self, identity: SweepIdentity, spec: ModelSpec, model_path: Path | None, directory: Path) -> TrialHost:
        """What serves the trials of a sweep into ``directory``. model_path: of the weights; None for dummies."""


@runtime_checkable
class LowersOnTheRun(Protocol):
    """A SweptEngine whose running server can lower some settings, so that they demand no start."""

    @property
    def lowered(self) -> frozenset[str]: ...


class HostLost(Exception):
    """The worker is gone, or cannot be reached; nothing is known of the trial that it had. The message is a clause."""


class HostUnfit(Exception):
    """The worker is there and must not be used: another kind of device, another version. The message is a sentence."""


class PoolHost(Protocol):
    """A worker of a pool, called from a thread of its own; ``close`` may be called from another meanwhile."""

    @property
    def name(self) -> str:
        """Name of the worker, for people: equal for no two workers of a pool."""

    @property
    def versions(self) -> Mapping[str, str]:
        """What it runs, by name, as far as that is known."""

    def start(self) -> None:
        """Wait until it can serve. HostLost or HostUnfit if it never will."""

    def run(self, prepared: PreparedTrial, limits: TimeLimits, on_event: OnEvent) -> TrialResult:
        """Serve one trial, as ``TrialHost.run``. HostLost if the worker is gone before its result."""

    def close(self) -> None:
        """End it, and everything that it started; a call that waits ends with HostLost."""


class HostPool(Protocol):
    """Where workers come from."""

    def new_hosts(self) -> Sequence[PoolHost]:
        """Hosts that joined since the last call, or replace one that was lost. Called a few times per second."""

    def forget(self, host: PoolHost) -> None:
        """It was lost: where its place is still there, another may take it."""

    def close(self) -> None:
        """End every worker."""
