"""Workers of a Ray cluster as the pool of a sweep: actors that are made, asked, lost and made again."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvplan import __version__
from kvplan.errors import KvplanError
from kvplan.sweeps.cluster.node_worker import NodeReport, NodeWorker, ServedTrial, Task
from kvplan.sweeps.cluster.places import WorkerPlace, nodes_from, places_in
from kvplan.sweeps.forecast.under_load import PreparedTrial
from kvplan.sweeps.hosts import HostLost, HostUnfit, OnEvent, PoolHost
from kvplan.sweeps.options import COUNTED_FORMAT, SweepOptions
from kvplan.sweeps.worker.client import TimeLimits
from kvplan.sweeps.worker.protocol import TrialResult

_POLL_SECONDS: Final = 0.5
_NODES_EVERY_SECONDS: Final = 2.0
_END_SECONDS: Final = 5.0
_STARTS_ON_A_NODE: Final = 10
"""Actors that may be lost on one node before it is left alone."""


class RayHost:
    """An actor at one place of the cluster. task: None for an actor that only looks."""

    def __init__(self, ray: Any, place: WorkerPlace, task: Task | None) -> None:
        self._ray = ray
        self._place = place
        self._task = task
        self._actor: Any = None
        self._is_closed = threading.Event()
        self._versions: Mapping[str, str] = {}

    @property
    def place(self) -> WorkerPlace:
        return self._place

    @property
    def name(self) -> str:
        return self._place.name

    @property
    def versions(self) -> Mapping[str, str]:
        return self._versions

    def look(
        self, options: SweepOptions, weight_bytes: int, memory_bytes: int | None, needs_weights: bool = False
    ) -> NodeReport:
        """What the node is. HostLost or HostUnfit where no actor comes up there."""
        self._actor = self._make_actor()
        found: NodeReport = self._get(self._actor.look.remote(options, weight_bytes, memory_bytes, needs_weights))
        return found

    def start(self) -> None:
        task = self._task
        assert task is not None
        device = task.identity.device
        needs_weights = task.load_format not in ("dummy", COUNTED_FORMAT)
        found = self.look(task.options, 4 * task.spec.num_parameters, device.engine_memory_bytes, needs_weights)
        _refuse_unlike(found, task)
        self._get(self._actor.prepare.remote(task))

    def run(self, prepared: PreparedTrial, limits: TimeLimits, on_event: OnEvent) -> TrialResult:
        try:
            served: ServedTrial = self._get(self._actor.run.remote(prepared, limits), on_event)
        except HostUnfit as unfit:  # it was fit when it started: another actor may be again
            raise HostLost(f"could not go on: {unfit}") from unfit
        self._versions = served.versions
        if served.result is None:
            raise KvplanError(served.problem or "The trial could not be run.", hint=served.hint)
        return served.result

    def close(self) -> None:
        self._is_closed.set()
        if self._actor is not None:
            self._ray.kill(self._actor)

    def end_politely(self) -> Any:
        """Ask the actor to clean up after itself; a reference to wait for, None where there is no actor."""
        return None if self._actor is None or self._is_closed.is_set() else self._actor.close.remote()

    def _make_actor(self) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = self._place
        on_gpu = {"num_gpus": place.num_gpus} if place.num_gpus else {}
        of_kind = {"accelerator_type": place.kind} if place.kind else {}
        options: dict[str, Any] = {
            "num_cpus": place.num_cpus,
            "max_concurrency": 2,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(place.node.node_id, soft=False),
            **on_gpu,
            **of_kind,
        }
        return self._ray.remote(NodeWorker).options(**options).remote()

    def _get(self, reference: Any, on_event: OnEvent | None = None) -> Any:
        """Wait for an answer for as long as the actor lives, and pass its events on."""
        errors = self._ray.exceptions
        try:
            while not self._ray.wait([reference], timeout=_POLL_SECONDS)[0]:
                if self._is_closed.is_set():
                    raise HostLost("was ended")
                if on_event is not None:
                    event = self._ray.get(self._actor.latest.remote(), timeout=10 * _POLL_SECONDS)
                    if event is not None:
                        on_event(event)
            return self._ray.get(reference)
        except errors.GetTimeoutError:
            return self._get(reference)  # busy: its events are lost, its answer is not
        except errors.RayTaskError as error:
            raise HostUnfit(f"kvplan failed there: {_last_line(error)}.") from error
        except errors.RayError as error:
            raise HostLost(f"ended ({type(error).__name__})") from error


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300].rstrip(".")


def _refuse_unlike(found: NodeReport, task: Task) -> None:
    """HostUnfit for a node whose figures would not be comparable with those of the plan's device."""
    device = task.identity.device
    if found.version != __version__:
        raise HostUnfit(f"it has kvplan {found.version}, this is {__version__}.")
    if found.device is None:
        raise HostUnfit(found.problem or "it has no such device.")
    there = found.device
    if (there.kind, there.name) != (device.kind, device.name):
        raise HostUnfit(f"it has a {there.name}, and the rows are of a {device.name}.")
    if device.kind == "cpu" and not task.identity.is_counted and there.num_cores != device.num_cores:
        raise HostUnfit(f"it has {there.num_cores} cores, and the rows are of {device.num_cores}.")
    if device.kind == "cuda" and there.memory_bytes != device.memory_bytes and not task.identity.is_counted:
        raise HostUnfit(
            f"its {there.name} has {there.memory_bytes:,} bytes, and the rows are of {device.memory_bytes:,}."
        )


class RayPool:
    """kind: of the GPUs to use, None for CPUs. Nodes that join the cluster are used, those that leave are forgotten."""

    def __init__(self, ray: Any, task: Task, kind: str | None) -> None:
        self._ray = ray
        self._task = task
        self._kind = kind
        self._hosts: dict[tuple[str, int], RayHost] = {}
        self._losses: Counter[str] = Counter()
        self._looked_at = 0.0

    def new_hosts(self) -> Sequence[PoolHost]:
        if time.monotonic() - self._looked_at < _NODES_EVERY_SECONDS:
            return ()
        self._looked_at = time.monotonic()
        nodes = nodes_from(self._ray.nodes())
        new = []
        for place in places_in(nodes, self._kind, is_timed=not self._task.options.is_counted):
            key = place.node.node_id, place.number
            if key not in self._hosts and self._losses[place.node.node_id] < _STARTS_ON_A_NODE:
                self._hosts[key] = RayHost(self._ray, place, self._task)
                new.append(self._hosts[key])
        self._end_those_of_dead_nodes({node.node_id for node in nodes})
        return new

    def forget(self, host: PoolHost) -> None:
        key = next((key for key, known in self._hosts.items() if known is host), None)
        if key is not None:
            self._losses[key[0]] += 1
            self._hosts.pop(key).close()

    def close(self) -> None:
        asked = [reference for host in self._hosts.values() if (reference := host.end_politely()) is not None]
        if asked:
            self._ray.wait(asked, num_returns=len(asked), timeout=_END_SECONDS)
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()

    def _end_those_of_dead_nodes(self, alive: set[str]) -> None:
        """An actor that waits for a place on a node that is gone would wait for ever."""
        for (node_id, _), host in self._hosts.items():
            if node_id not in alive:
                host.close()
