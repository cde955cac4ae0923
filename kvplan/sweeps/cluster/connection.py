"""A running Ray cluster, as a sweep sees it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from kvplan import __version__
from kvplan.errors import KvplanError, UsageError
from kvplan.machine.device import Device
from kvplan.sweeps.capacity import counted_device
from kvplan.sweeps.cluster.hosts import RayHost, RayPool
from kvplan.sweeps.cluster.node_worker import Task
from kvplan.sweeps.cluster.places import kind_to_use, nodes_from, places_in
from kvplan.sweeps.drafting import swept_model
from kvplan.sweeps.hosts import HostLost, HostPool, HostUnfit
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.plan import SweepPlan
from kvplan.sweeps.rows import SweepIdentity

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
