"""Where in a cluster workers belong: one for each GPU, one for each node of CPUs, one per CPU if nothing is timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvplan.errors import KvplanError, UsageError
from kvplan.sweeps.options import SweepOptions

_KIND: Final = "accelerator_type:"


@dataclass(frozen=True, slots=True)
class Node:
    """A node that is alive. kinds: of its GPUs, as Ray names them (``L4``, ``A100-80G``)."""

    node_id: str
    name: str
    num_cpus: float
    num_gpus: int
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where one worker runs, and what it takes of its node. number: from 1, among those of the node."""

    node: Node
    number: int
    num_cpus: float
    num_gpus: int = 0
    kind: str | None = None

    @property
    def name(self) -> str:
        """Unique in a cluster, also where several nodes are one machine."""
        return f"{self.node.name} ({self.node.node_id[:6]}), worker {self.number}"


def nodes_from(listed: Sequence[Mapping[str, Any]]) -> tuple[Node, ...]:
    """The nodes that are alive, of those that ``ray.nodes()`` lists."""
    return tuple(_node(entry) for entry in listed if entry["Alive"])


def _node(entry: Mapping[str, Any]) -> Node:
    resources = entry.get("Resources", {})
    return Node(
        node_id=entry["NodeID"],
        name=str(entry.get("NodeManagerHostname") or entry.get("NodeManagerAddress") or "node"),
        num_cpus=float(resources.get("CPU", 0)),
        num_gpus=int(resources.get("GPU", 0)),
        kinds=tuple(sorted(name.removeprefix(_KIND) for name in resources if name.startswith(_KIND))),
    )


def kind_to_use(nodes: Sequence[Node], options: SweepOptions, asked: str | None) -> str | None:
    """The kind of GPU that all workers of a sweep have; None for CPUs. Figures of two kinds are never mixed.

    asked: ``--accelerator-type``. UsageError where the cluster has several and none was asked for.
    """
    kinds = sorted({kind for node in nodes if node.num_gpus for kind in node.kinds or ("GPU",)})
    computes_on_gpu = options.device != "cpu" and not options.is_counted
    if not computes_on_gpu:
        if asked is not None:
            raise UsageError("--accelerator-type names a GPU, and this sweep uses none.", hint="leave it out")
        return None
    if asked is not None and asked not in kinds:
        raise KvplanError(f"The cluster has no {asked}.", hint=f"it has {', '.join(kinds)}" if kinds else "it has CPUs")
    if asked is None and len(kinds) > 1:
        raise UsageError(
            f"The cluster has several kinds of GPUs: {', '.join(kinds)}.",
            hint=f"sweep one after the other, each with --accelerator-type, such as {kinds[0]}; `kvplan report` "
            "sets the directories side by side",
        )
    if not kinds and options.device == "cuda":
        raise KvplanError("The cluster has no GPUs.", hint="use --device cpu")
    return asked or (kinds[0] if kinds else None)


def places_in(nodes: Sequence[Node], kind: str | None, *, is_timed: bool) -> tuple[WorkerPlace, ...]:
    """One place for each worker. kind: of GPU, None for CPUs. is_timed: two workers on a node would disturb each other.

    A worker on a GPU takes one of its node's CPUs; one that times CPUs all of them.
    """
    places: list[WorkerPlace] = []
    for node in nodes:
        if kind is not None:
            has_kind = kind in (node.kinds or ("GPU",))
            share = min(1.0, node.num_cpus / max(1, node.num_gpus))
            named = kind if node.kinds else None
            places += [WorkerPlace(node, n, share, 1, named) for n in range(1, (node.num_gpus if has_kind else 0) + 1)]
        elif is_timed:
            places += [WorkerPlace(node, 1, node.num_cpus)] if node.num_cpus >= 1 else []
        else:
            places += [WorkerPlace(node, number, 1.0) for number in range(1, int(node.num_cpus) + 1)]
    return tuple(places)
