"""A pool of workers on this machine: real processes behind the seam that a cluster fills, lost when a test says so."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from sweep_helpers import FAKE_WORKER

from kvplan.sweeps.forecast.under_load import PreparedTrial
from kvplan.sweeps.hosts import HostLost, HostUnfit, OnEvent, PoolHost
from kvplan.sweeps.plan import SweepPlan
from kvplan.sweeps.rows import SweepIdentity
from kvplan.sweeps.worker.client import TimeLimits, Worker
from kvplan.sweeps.worker.protocol import TrialResult
from kvplan.sweeps.worker_host import WorkerHost, engine_source


class LocalHost:
    """lost_with: max_num_seqs of trials in which it is lost, before they end; None: in its first trial.

    meets: to wait at in the first trial.
    """

    def __init__(
        self,
        name: str,
        host: WorkerHost,
        lost_with: set[int] | None,
        unfit: str | None,
        meets: threading.Barrier | None,
    ) -> None:
        self.name = name
        self.versions: Mapping[str, str] = {"engine": "fake"}
        self.served: list[int] = []
        self._host = host
        self._lost_with = lost_with
        self._unfit = unfit
        self._meets = meets

    def start(self) -> None:
        if self._unfit is not None:
            raise HostUnfit(self._unfit)

    def run(self, prepared: PreparedTrial, limits: TimeLimits, on_event: OnEvent) -> TrialResult:
        if self._meets is not None:
            self._meets.wait(timeout=60)
            self._meets = None
        num_seqs = prepared.trial.settings.max_num_seqs
        result = self._host.run(prepared, limits, on_event)
        if self._lost_with is None or num_seqs in self._lost_with:
            self.close()
            raise HostLost("was unplugged")
        self.served.append(num_seqs)
        return result

    def close(self) -> None:
        self._host.close()


class LocalPool:
    """size: workers at first; a lost one is replaced. lost_with: of the first num_losing workers, as for LocalHost."""

    def __init__(
        self,
        plan: SweepPlan,
        identity: SweepIdentity,
        directory: Path,
        *,
        size: int = 2,
        lost_with: Sequence[int] | None = None,
        num_losing: int = 0,
        unfit: Sequence[str | None] = (),
        together: bool = False,
    ) -> None:
        self.hosts: list[LocalHost] = []
        self._plan, self._identity, self._directory = plan, identity, directory
        self._lost_with, self._num_losing = lost_with, num_losing
        self._unfit = [*unfit, *[None] * size][:size]
        self._num_wanted = size
        self._meets = threading.Barrier(size) if together else None

    def new_hosts(self) -> Sequence[PoolHost]:
        new = [self._make(len(self.hosts) + place) for place in range(self._num_wanted)]
        self._num_wanted = 0
        self.hosts += new
        return new

    def forget(self, host: PoolHost) -> None:
        self._num_wanted += 1

    def close(self) -> None:
        for host in self.hosts:
            host.close()

    def _make(self, number: int) -> LocalHost:
        plan = self._plan
        directory = self._directory / f"node-{number}"
        directory.mkdir()
        source = engine_source(plan.options, plan.spec, plan.load_format, directory)
        log_path = directory / "worker.log"
        host = WorkerHost(self._identity, plan.spec, source, lambda: Worker.start(log_path, FAKE_WORKER))
        lost_with: set[int] | None = set()
        if number < self._num_losing:
            lost_with = None if self._lost_with is None else set(self._lost_with)
        unfit = self._unfit[number] if number < len(self._unfit) else None
        return LocalHost(f"worker {number}", host, lost_with, unfit, self._meets if number < 2 else None)
