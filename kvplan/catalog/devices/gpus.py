"""GPU and CPU-host profiles as they are shipped, found by name.

Profiles are matched by exact alias, never by substring: ``l4`` must not find an L40.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from kvplan.catalog.devices.clouds import find_instance, rented, unknown_instance_hint
from kvplan.catalog.devices.gpu_profile import (
    ASSUMED_NODE_NETWORK_BYTES_PER_SECOND,
    NETWORK_GIVEN,
    GpuPrice,
    GpuProfile,
)
from kvplan.catalog.devices.slices import slice_name, sliced
from kvplan.errors import KvplanError, UsageError
from kvplan.paths import profiles_dir, read_shipped
from kvplan.units import GIB

__all__ = [
    "DEFAULT_GPUS",
    "NETWORK_GIVEN",
    "GpuCount",
    "GpuPrice",
    "GpuProfile",
    "as_equipped",
    "find_gpu",
    "load_gpus",
    "parse_gpu_count",
    "with_bridges",
]

DEFAULT_GPUS: tuple[str, ...] = ("l4", "rtx-4090", "l40s", "a100-80gb-sxm", "h100-sxm", "h200")
"""What `kvplan estimate` shows when no GPU is named: a 24 GB card, a consumer card and the common data-centre cards."""


@cache
def load_gpus() -> tuple[GpuProfile, ...]:
    """All shipped profiles in the order of the files. KvplanError when a file is unreadable or an alias taken twice."""
    profiles: list[GpuProfile] = []
    for path in sorted((profiles_dir() / "gpus").glob("*.json")):
        profiles.extend(read_shipped(f"gpus/{path.name}", _profiles))
    if not profiles:
        raise KvplanError("kvplan's GPU profiles are missing from this installation.", hint="reinstall kvplan")
    _by_alias(profiles)
    return tuple(profiles)


def find_gpu(name: str) -> GpuProfile:
    """The profile whose id, name or alias is exactly ``name``, ignoring case. UsageError with close matches.

    A MIG slice is named after its GPU: ``h100-1g.10gb``, ``h100-80gb:3g.40gb``, ``NVIDIA A100-SXM4-40GB MIG 2g.10gb``.
    """
    index = _index()
    profile = index.get(_key(name))
    if profile is not None:
        return profile
    part = slice_name(name)
    if part is not None and _key(part.gpu) in index:
        return sliced(index[_key(part.gpu)], part.slice)
    instance = find_instance(name)
    if instance is not None:
        raise UsageError(
            f"{instance.name} is an instance, not a GPU.",
            hint=f"its GPUs are {instance.num_gpus}x{instance.gpu}",
        )
    hint = unlisted_hint(name) or unknown_instance_hint(name)
    if hint is not None:
        raise UsageError(f"There is no GPU profile named '{name}'.", hint=hint)
    close = difflib.get_close_matches(_key(name), list(index), n=8, cutoff=0.5)
    suggestions = list(dict.fromkeys(index[alias].id for alias in close))[:4]
    hint = f"did you mean {', '.join(suggestions)}? " if suggestions else ""
    raise UsageError(f"There is no GPU profile named '{name}'.", hint=f"{hint}`kvplan gpus` lists them all")


def with_bridges(gpus: Iterable[GpuProfile]) -> tuple[GpuProfile, ...]:
    """``gpus``, in bridged pairs where they can be. UsageError where none of them takes a bridge."""
    asked = tuple(gpus)
    if all(gpu.bridged_gpus is None for gpu in asked):
        takers = ", ".join(gpu.id for gpu in load_gpus() if gpu.bridged_gpus is not None)
        raise UsageError(
            "None of these GPUs takes an NVLink bridge.", hint=f"leave --nvlink-bridge out; those that do are {takers}"
        )
    return tuple(gpu.with_bridge() for gpu in asked)


def as_equipped(
    gpus: Iterable[GpuProfile], *, nvlink_bridge: bool, network_bytes_per_second: float | None
) -> tuple[GpuProfile, ...]:
    """``gpus`` with the bridges and the network that a user says they have. UsageError as ``with_bridges``."""
    found = with_bridges(gpus) if nvlink_bridge else tuple(gpus)
    if network_bytes_per_second is None:
        return found
    return tuple(gpu.with_network(network_bytes_per_second) for gpu in found)


class GpuCount(NamedTuple):
    """So many GPUs of one kind, as ``8xh200`` names them."""

    num_gpus: int
    gpu: GpuProfile


class _Reading(NamedTuple):
    """One way to read a count and a name."""

    num_gpus: int
    name: str
    is_counted: bool = False


_COUNT_FIRST = re.compile(r"(-?\d+)\s*[x*\u00d7]\s*(.+)", re.IGNORECASE)
_COUNT_LAST = re.compile(r"(.+?)\s*(?:[x*\u00d7:]\s*)(\d+)", re.IGNORECASE)


def parse_gpu_count(text: str) -> GpuCount:
    """``h200`` -> 1; ``8xh200``, ``8 x h200``, ``h200x8``, ``h200:8`` -> 8. UsageError for an unknown name or 0.

    A profile's own name comes first: ``mi300x`` is one GPU. A cloud's instance names all of its GPUs:
    ``p5.48xlarge`` -> 8 of h100-sxm at its price, ``2xp5.48xlarge`` -> 16.
    """
    count, name, _ = _read(text)
    if count < 1:
        raise UsageError(f"'{text}' names no GPU: the count must be at least 1.", hint="for example 8xh200")
    instance = None if _is_gpu(name) else find_instance(name)
    if instance is not None:
        return GpuCount(count * instance.num_gpus, rented(find_gpu(instance.gpu), instance))
    return GpuCount(count, find_gpu(name))


def states_count(text: str) -> bool:
    """Return whether ``text`` says how many GPUs: ``1xh200`` does, ``h200`` does not."""
    return _read(text).is_counted


def _read(text: str) -> _Reading:
    words = text.strip()
    first, last = _COUNT_FIRST.fullmatch(words), _COUNT_LAST.fullmatch(words)
    counted = [_Reading(int(first.group(1)), first.group(2), True)] if first else []
    counted += [_Reading(int(last.group(2)), last.group(1), True)] if last else []
    readings = [_Reading(1, words), *counted]
    known = next((each for each in readings if _is_gpu(each.name) or find_instance(each.name) is not None), None)
    if known is None and counted and unlisted_hint(words) is None:
        known = counted[0]
    return known or readings[0]


def _is_gpu(name: str) -> bool:
    """Whether it names a GPU, or a slice of one."""
    part = slice_name(name)
    return _key(name) in _index() or (part is not None and _key(part.gpu) in _index())


def _key(name: str) -> str:
    return " ".join(name.lower().split())


@cache
def _index() -> Mapping[str, GpuProfile]:
    return MappingProxyType(_by_alias(load_gpus()))


def _by_alias(profiles: Iterable[GpuProfile]) -> dict[str, GpuProfile]:
    index: dict[str, GpuProfile] = {}
    for profile in profiles:
        for alias in {_key(text) for text in (profile.id, profile.name, *profile.aliases)}:
            if alias in index:
                raise KvplanError(f"GPU alias '{alias}' belongs to both {index[alias].id} and {profile.id}.")
            index[alias] = profile
    return index


def _profiles(document: Mapping[str, Any]) -> list[GpuProfile]:
    return [_profile(entry, document["sources"]) for entry in document["gpus"]]


def _profile(entry: Mapping[str, Any], sources: Mapping[str, str]) -> GpuProfile:
    links = entry["interconnect"]
    numbers = ("memory_bytes", "listed_memory_bytes", "memory_bandwidth", "dense_flops", "l2_cache_bytes")
    sourced = {name: entry[name] for name in numbers if name in entry} | dict(links)
    price = entry.get("price")
    memory_bytes = int(entry["memory_bytes"]["value"])
    if memory_bytes < GIB:
        raise ValueError(f"{entry['id']}: {memory_bytes} bytes is no GPU")
    return GpuProfile(
        id=entry["id"],
        name=entry["name"],
        vendor=entry["vendor"],
        aliases=tuple(entry["aliases"]),
        memory_bytes=memory_bytes,
        memory_bandwidth_bytes_per_second=float(entry["memory_bandwidth"]["value"]),
        dense_flops=MappingProxyType({name: float(value) for name, value in entry["dense_flops"]["value"].items()}),
        compute_capability=entry["compute_capability"],
        multiprocessors=int(entry["multiprocessors"]),
        pcie_bytes_per_second=_bandwidth(links, "pcie_bandwidth"),
        nvlink_bytes_per_second=_bandwidth(links, "nvlink_bandwidth"),
        bridged_gpus=int(links["bridged_gpus"]["value"]) if "bridged_gpus" in links else None,
        network_bytes_per_second=_bandwidth(links, "network_bandwidth")
        or ASSUMED_NODE_NETWORK_BYTES_PER_SECOND / int(entry["max_gpus_per_node"]),
        max_gpus_per_node=int(entry["max_gpus_per_node"]),
        nvlink_gpus=int(links.get("nvlink_gpus", {"value": entry["max_gpus_per_node"]})["value"]),
        l2_cache_bytes=int(entry["l2_cache_bytes"]["value"]) if "l2_cache_bytes" in entry else 0,
        listed_memory_bytes=int(entry["listed_memory_bytes"]["value"]) if "listed_memory_bytes" in entry else None,
        peer_access=bool(links.get("peer_access", {"value": True})["value"]),
        unified_memory=bool(entry.get("unified_memory", False)),
        price=GpuPrice(price["usd_per_hour"], price["date"], price["source"]) if price else None,
        note=entry.get("note"),
        sources=MappingProxyType({name: sources[number["source"]] for name, number in sourced.items()}),
    )


def _bandwidth(links: Mapping[str, Any], name: str) -> float | None:
    return float(links[name]["value"]) if name in links else None


SCHEMA: Final = "kvplan.gpus/1"


def known_gpus(search: str | None = None) -> list[GpuProfile]:
    """Return the devices whose id, name or alias contains ``search``, or those of the cloud's instance of this name.

    A slice is no part of the list, and found by its whole name. UsageError where nothing is.
    """
    instance = None if search is None else find_instance(search)
    if instance is not None:
        return [rented(find_gpu(instance.gpu), instance)]
    found = [profile for profile in load_gpus() if search is None or _matches(profile, search)]
    return found or [find_gpu(search or "")]


def _matches(profile: GpuProfile, search: str) -> bool:
    names = (profile.id, profile.name, *profile.aliases)
    return any(search.casefold() in name.casefold() for name in names)


def gpus_document(found: Sequence[GpuProfile]) -> dict[str, Any]:
    """Return what ``kvplan gpus --json`` prints."""
    return {"schema": SCHEMA, "gpus": [_document(profile) for profile in found]}


def gpu_row(profile: GpuProfile) -> dict[str, Any]:
    """Return the main facts of a device, each in one cell."""
    return {
        "id": profile.id,
        "name": profile.name,
        "vendor": profile.vendor,
        "memory_bytes": profile.memory_bytes,
        "memory_bandwidth_bytes_per_second": profile.memory_bandwidth_bytes_per_second,
        "compute_capability": profile.compute_capability,
        "pcie_bytes_per_second": profile.pcie_bytes_per_second,
        "nvlink_bytes_per_second": profile.nvlink_bytes_per_second,
        "bridged_gpus": profile.bridged_gpus,
        "max_gpus_per_node": profile.max_gpus_per_node,
        "nvlink_gpus": profile.nvlink_gpus if profile.nvlink_bytes_per_second else None,
        "network_bytes_per_second": profile.network_bytes_per_second if profile.has_known_network else None,
        "usd_per_hour": profile.price.usd_per_hour if profile.price else None,
        "price_date": profile.price.date if profile.price else None,
    }


def _document(profile: GpuProfile) -> dict[str, Any]:
    return {
        **gpu_row(profile),
        "aliases": list(profile.aliases),
        "dense_flops": dict(profile.dense_flops),
        "note": profile.note,
        "sources": dict(profile.sources),
    }


def unlisted_hint(name: str) -> str | None:
    """The way out for a device that kvplan has no profile of; None where nothing is known of it."""
    words = " ".join(re.sub(r"[-_]", " ", name.casefold()).split())
    devices = read_shipped("unlisted-gpus.json", itemgetter("devices"))
    return next((each["hint"] for each in devices if re.fullmatch(each["pattern"], words)), None)
