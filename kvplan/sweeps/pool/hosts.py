"""What runs the trials of a sweep side by side. ``kvplan.sweeps.cluster`` lends workers of a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kvplan.sweeps.forecast.under_load import PreparedTrial
from kvplan.sweeps.hosts import OnEvent
from kvplan.sweeps.worker.client import TimeLimits
from kvplan.sweeps.worker.protocol import TrialResult


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
