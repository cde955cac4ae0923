"""The devices known by name, as a document and as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kvplan.catalog.devices.clouds import find_instance, rented
from kvplan.catalog.devices.gpus import GpuProfile, find_gpu, load_gpus

SCHEMA: Final = "kvplan.gpus/1"


def known_gpus(search: str | None = None) -> list[GpuProfile]:
    """Return the devices whose id, name or alias contains ``search``, or those of the cloud's instance of this name."""
    instance = None if search is None else find_instance(search)
    if instance is not None:
        return [rented(find_gpu(instance.gpu), instance)]
    return [profile for profile in load_gpus() if search is None or _matches(profile, search)]


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
