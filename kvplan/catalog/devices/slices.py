"""Slices of a GPU as NVIDIA's MIG makes them, by nvidia-smi's names: memory, multiprocessors and share of bandwidth.

A memory slice has its part of the memory's capacity and of its bandwidth (MIG user guide, "Concepts"), a compute slice
its multiprocessors, whose share is that of the speed of the products. Slices have no way to each other: no NVLink, no
peer access over PCIe (github.com/NVIDIA/nccl/issues/1716), and a process sees one of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from kvplan.catalog.devices.gpu_profile import GpuProfile
from kvplan.caveats import Caveat
from kvplan.errors import UsageError
from kvplan.paths import read_shipped

_NAME: Final = re.compile(
    r"(?:nvidia[\s-]+)?(?P<gpu>.+?)(?:[\s:/_-]+mig)?[\s:/_-]+(?P<slice>\d+g\.\d+gb)(?:[+-](?:me|gfx)(?:\.all)?)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Slice:
    """One MIG profile of one GPU. ``memory_share``: of the GPU's bandwidth."""

    name: str
    memory_bytes: int
    multiprocessors: int
    memory_share: float
    instances: int
    source: str


@dataclass(frozen=True, slots=True)
class SliceName:
    """``h100-80gb:3g.40gb`` -> h100-80gb, 3g.40gb."""

    gpu: str
    slice: str


def slice_name(name: str) -> SliceName | None:
    """A GPU's name with a MIG profile behind it, as nvidia-smi, torch and Kubernetes write them; else None."""
    match = _NAME.fullmatch(name.strip())
    return None if match is None else SliceName(match["gpu"], match["slice"].lower())


def sliced(gpu: GpuProfile, name: str) -> GpuProfile:
    """The slice ``name`` of ``gpu`` as a device of its own. UsageError where the GPU has none of this name."""
    known = slices_of(gpu)
    if name not in known:
        raise _unknown(gpu, name)
    part = known[name]
    share = part.multiprocessors / gpu.multiprocessors
    sources = dict.fromkeys(("memory_bytes", "memory_bandwidth", "dense_flops"), part.source)
    return replace(
        gpu,
        id=f"{gpu.id}-{name}",
        name=f"{gpu.name} MIG {name}",
        aliases=(),
        memory_bytes=part.memory_bytes,
        listed_memory_bytes=None,
        memory_bandwidth_bytes_per_second=gpu.memory_bandwidth_bytes_per_second * part.memory_share,
        dense_flops=MappingProxyType({dtype: flops * share for dtype, flops in gpu.dense_flops.items()}),
        multiprocessors=part.multiprocessors,
        nvlink_bytes_per_second=None,
        bridged_gpus=None,
        max_gpus_per_node=part.instances,
        nvlink_gpus=1,
        price=None,
        note=f"{part.multiprocessors} of {gpu.multiprocessors} multiprocessors and {part.memory_share:.3g} of the "
        f"memory's bandwidth of {gpu.id}; up to {part.instances} on one GPU",
        sources=MappingProxyType({**gpu.sources, **sources}),
        part_of=gpu.id,
    )


def slice_note(gpu: GpuProfile) -> str:
    """What a slice has of its GPU, and what its speeds are taken from."""
    return Caveat(
        f"{gpu.id} is a MIG slice: {gpu.note}. Its speeds are scaled by these shares; none was measured on a slice. "
        "Slices cannot be joined to serve one model."
    )


def slices_of(gpu: GpuProfile) -> Mapping[str, Slice]:
    """The MIG profiles of ``gpu`` by name, smallest first; empty where none are known."""
    return _slices().get(gpu.id, {})


def _unknown(gpu: GpuProfile, name: str) -> UsageError:
    known, others = slices_of(gpu), [gpu_id for gpu_id, slices in _slices().items() if name in slices]
    having = f"; {name} is a slice of {', '.join(others)}" if others else ""
    hint = f"{gpu.id} has {', '.join(known)}" if known else f"no MIG slices of {gpu.id} are known"
    return UsageError(f"There is no MIG slice '{name}' of {gpu.id}.", hint=hint + having)


@cache
def _slices() -> Mapping[str, Mapping[str, Slice]]:
    return read_shipped("mig.json", _by_gpu)


def _by_gpu(document: Mapping[str, Any]) -> Mapping[str, Mapping[str, Slice]]:
    found: dict[str, Mapping[str, Slice]] = {}
    for part in document["parts"]:
        slices = {entry["name"]: _slice(entry, part, document["sources"]) for entry in part["slices"]}
        found |= dict.fromkeys(part["gpus"], MappingProxyType(slices))
    return MappingProxyType(found)


def _slice(entry: Mapping[str, Any], part: Mapping[str, Any], sources: Mapping[str, str]) -> Slice:
    return Slice(
        entry["name"],
        int(entry["memory_bytes"]),
        int(entry["multiprocessors"]),
        entry["memory_slices"] / part["memory_slices"],
        int(entry["instances"]),
        sources[entry["source"]],
    )
