"""Machines that clouds rent whole, by their names: which GPUs they have, and what one costs per hour on demand."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from kvplan.catalog.devices.gpu_profile import ASSUMED_NODE_NETWORK_BYTES_PER_SECOND, GpuPrice, GpuProfile
from kvplan.paths import read_shipped

_LOOKS_LIKE_ONE: Final = re.compile(
    r"[a-z]\d+[a-z]*(-[a-z]+\d+)?\.(\d*x?large|metal).*|[ag]\d[a-z]?-[a-z]+(gpu|standard)?-\d+g?|(standard_)?n[cdgv]\d+[a-z]*(_\w+)?_v\d"
)
"""AWS's, Google's and Azure's way of naming them, in lower case."""


@dataclass(frozen=True, slots=True)
class Instance:
    """``p5.48xlarge``: eight H100. ``price`` and network are those of the whole, None where no source is known."""

    name: str
    gpu: str
    num_gpus: int
    price: GpuPrice | None
    region: str | None
    network_bytes_per_second: float | None
    network_source: str | None


def find_instance(name: str) -> Instance | None:
    """The instance of this name, in any case, Azure's with or without ``Standard_``; None for other names."""
    return _index().get(_key(name))


def unknown_instance_hint(name: str) -> str | None:
    """What to write instead, for a name that looks like an instance's; None for others."""
    if not _LOOKS_LIKE_ONE.fullmatch(name.strip().casefold()):
        return None
    close = difflib.get_close_matches(_key(name), list(_index()), n=3, cutoff=0.75)
    meant = f"did you mean {', '.join(_index()[key].name for key in close)}? " if close else ""
    return f"{meant}otherwise name the GPUs of the instance, such as --gpu 8xh100"


def rented(gpu: GpuProfile, instance: Instance, usd_per_hour: float | None = None, source: str = "") -> GpuProfile:
    """``gpu`` as it stands in ``instance``: its price and its neighbours. usd_per_hour: of the whole, if given."""
    price = instance.price if usd_per_hour is None else GpuPrice(usd_per_hour, date="", source=source)
    fewer = min(gpu.max_gpus_per_node, instance.num_gpus)
    rack = gpu.nvlink_gpus if gpu.nvlink_gpus > gpu.max_gpus_per_node else min(gpu.nvlink_gpus, fewer)
    return replace(
        _networked(gpu, instance),
        max_gpus_per_node=fewer,
        nvlink_gpus=rack,
        rented_as=instance.name,
        price=_of_one(instance, price),
    )


def _networked(gpu: GpuProfile, instance: Instance) -> GpuProfile:
    """Give the GPU the instance's network; else a whole server is taken for the reference system, a part is not."""
    if instance.network_bytes_per_second is not None:
        source = f"{instance.name}: {instance.network_source}"
        return gpu.with_network(instance.network_bytes_per_second / instance.num_gpus, source)
    if gpu.has_known_network and instance.num_gpus >= gpu.max_gpus_per_node:
        return gpu
    return gpu.with_network(ASSUMED_NODE_NETWORK_BYTES_PER_SECOND / instance.num_gpus, source=None)


def _of_one(instance: Instance, price: GpuPrice | None) -> GpuPrice | None:
    if price is None:
        return None
    region = f" in {instance.region}" if instance.region and price is instance.price else ""
    gpus = f" for its {instance.num_gpus} GPUs, rented whole" if instance.num_gpus > 1 else ""
    text = f"{instance.name}{region} at ${price.usd_per_hour:,.2f} per hour{gpus}; {price.source}"
    return GpuPrice(price.usd_per_hour / instance.num_gpus, price.date, text)


def _key(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().casefold()).removeprefix("standard-")


@cache
def _index() -> Mapping[str, Instance]:
    return read_shipped("clouds.json", _by_name)


def _by_name(document: Mapping[str, Any]) -> Mapping[str, Instance]:
    found = [_instance(entry, document["sources"]) for entry in document["instances"]]
    also = {
        _key(name): each
        for each, entry in zip(found, document["instances"], strict=True)
        for name in entry.get("also", ())
    }
    return MappingProxyType(also | {_key(each.name): each for each in found})


def all_instances() -> tuple[Instance, ...]:
    """All of them, in the order of the file."""
    return tuple(dict.fromkeys(_index().values()))


def _instance(entry: Mapping[str, Any], sources: Mapping[str, str]) -> Instance:
    source = sources[entry["source"]]
    price = GpuPrice(float(entry["usd_per_hour"]), entry["date"], source) if "usd_per_hour" in entry else None
    network = entry.get("network", {})
    return Instance(
        entry["name"],
        entry["gpu"],
        int(entry["num_gpus"]),
        price,
        region=entry.get("region"),
        network_bytes_per_second=network.get("bytes_per_second"),
        network_source=sources[network["source"]] if network else None,
    )
