"""A running Ray cluster, as a sweep sees it."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from kvplan import __version__
from kvplan.errors import KvplanError, UsageError
from kvplan.machine.device import Device
from kvplan.sweeps.capacity import counted_device
from kvplan.sweeps.cluster.node_worker import NodeReport, NodeWorker, ServedTrial, Task
from kvplan.sweeps.cluster.places import WorkerPlace, kind_to_use, nodes_from, places_in
from kvplan.sweeps.drafting import swept_model
from kvplan.sweeps.forecast.under_load import PreparedTrial
from kvplan.sweeps.hosts import HostLost, HostPool, HostUnfit, OnEvent, PoolHost
from kvplan.sweeps.options import COUNTED_FORMAT, SweepOptions
from kvplan.sweeps.plan import SweepPlan
from kvplan.sweeps.rows import SweepIdentity
from kvplan.sweeps.worker.client import TimeLimits
from kvplan.sweeps.worker.protocol import TrialResult

_POLL_SECONDS: Final = 0.5
_NODES_EVERY_SECONDS: Final = 2.0
_END_SECONDS: Final = 5.0
_STARTS_ON_A_NODE: Final = 10
"""Actors that may be lost on one node before it is left alone."""
_CONNECT_SECONDS: Final = 5.0
_START_ONE: Final = "start one with `ray start --head`, and give the address that it prints"


@contextmanager
def connected(address: str, accelerator_type: str | None = None) -> Iterator[Cluster]:
    """Connect to the cluster at ``auto`` or ``HOST:PORT`` of its head; Ray's telemetry and dashboard are not used.

    KvplanError if there is none, or if it runs another version of Ray or Python.
    """
    if "://" in address:
        raise UsageError(
            f"--ray '{address}' is not the address of a head node.",
            hint="run kvplan on a node of the cluster, with --ray auto or HOST:PORT",
        )
    if address != "auto":
        _refuse_silent(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    try:
        if address == "auto":
            _refuse_silent(_address_here())
        ray.init(address=address, namespace="kvplan", log_to_driver=False, logging_level=logging.CRITICAL)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = "here" if address == "auto" else f"at {address}"
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise KvplanError(
            f"No Ray cluster could be joined {where}: {lines[0].split('. ')[0].rstrip('.')}.",
            hint=_START_ONE,
        ) from error
    try:
        yield Cluster(ray, accelerator_type)
    finally:
        ray.shutdown()


def _address_here() -> str:
    """Where Ray would look for ``auto``: RAY_ADDRESS, a head that runs here, or the last one that was started here.

    The last one may have ended long ago. ConnectionError if there never was one.
    """
    from ray._private import services

    return str(services.canonicalize_bootstrap_address("auto"))


def _refuse_silent(address: str) -> None:
    """KvplanError if nothing listens there: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"--ray '{address}' is neither auto nor HOST:PORT.", hint="such as 10.0.0.1:6379")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError, ValueError) as error:  # ValueError: a name that can be none of a host
        raise KvplanError(f"Nothing answers at {address}: {error}.", hint=_START_ONE) from error


@dataclass(frozen=True, slots=True)
class Cluster:
    """ray: the module, connected. accelerator_type: the kind of GPU asked for."""

    ray: Any
    accelerator_type: str | None

    def device_for(self, options: SweepOptions, memory_bytes: int | None = None) -> Device:
        """The device that a worker of this sweep will have, as it is on the first node that has one.

        memory_bytes: what it is to have, None for what it has. KvplanError where no node can serve.
        """
        if options.is_foreign:
            raise UsageError(
                f"--ray cannot be used with --engine {options.engine}.",
                hint="run it in shards: --shard 1/2 on one machine, --shard 2/2 on another",
            )
        if options.is_counted:
            return counted_device(options)
        spec = swept_model(options.model, options.speculative_config)
        nodes = nodes_from(self.ray.nodes())
        kind = kind_to_use(nodes, options, self.accelerator_type)
        problems = []
        for place in places_in(nodes, kind, is_timed=True):
            host = RayHost(self.ray, place, None)
            try:
                found = host.look(options, 4 * spec.num_parameters, memory_bytes)
            except (HostLost, HostUnfit) as error:
                problems.append(str(error))
                continue
            finally:
                host.close()
            if found.version != __version__:
                problems.append(f"{found.node} has kvplan {found.version}, this is {__version__}.")
            elif found.device is not None:
                return found.device
            else:
                problems.append(found.problem or "")
        reason = f" {problems[0]}" if problems else " It has no CPU or GPU to spare."
        raise KvplanError(f"No node of the cluster can run this sweep.{reason}", hint="see `ray status`")

    def pool_of(self, plan: SweepPlan, identity: SweepIdentity) -> HostPool:
        """Workers for the plan's trials."""
        kind = kind_to_use(nodes_from(self.ray.nodes()), plan.options, self.accelerator_type)
        return RayPool(self.ray, Task(identity, plan.spec, plan.options, plan.load_format), kind)


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
