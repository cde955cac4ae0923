"""The GPU that a log is of: the profiles that fit what it says of memory, names and platform.

A total is what the driver reports, and that differs between cards of one kind by up to two percent. So one GPU is only
taken where nothing else fits: cards of 24 GB, or an A100 and an H100, cannot be told apart by their size.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from kvplan.catalog.devices.gpus import GpuProfile, find_gpu, load_gpus
from kvplan.errors import UsageError
from kvplan.estimate.vllm.budget import CONTEXT_BYTES
from kvplan.explaining.startup_log import StartupLog
from kvplan.units import GIB, format_bytes

_SAME_BYTES: Final = 15 * GIB // 1000
_OTHER_BYTES: Final = 30 * GIB // 1000
"""Totals are printed in hundredths of a GiB, and drivers differ by a few MiB: another card must be farther off."""
_SAME_SHARE: Final = 0.002
_NEAR_SHARE: Final = 0.02
_MOST_IN_USE_BYTES: Final = 3 * GIB // 2
"""What contexts and a desktop hold before SGLang looks at what is free."""
_MOST_NAMED: Final = 6
_MEMORY_IN_NAME: Final = re.compile(r"[\s-]*\d+ ?gb\b.*$")


class FittingGpus(NamedTuple):
    """Profiles that fit, none where the log says nothing of its GPU; ``note``: how they were found, or why not."""

    profiles: tuple[GpuProfile, ...]
    note: str | None = None


def fitting_gpus(log: StartupLog) -> FittingGpus:
    """Return the profiles that fit everything the log says."""
    allowed = _allowed(log)
    # The profiles of all ``names``, none where one of them has none: it may be the one that serves.
    found = [_profile(name) for name in log.gpu_names]
    known = [gpu for gpu in found if gpu is not None]
    named = tuple(gpu for gpu in dict.fromkeys(known) if gpu in allowed) if len(known) == len(found) else ()
    by_size, size = _of_size(log, named or allowed)
    if len(named) == 1 and (size is None or by_size):
        return FittingGpus(named, f"GPU taken to be {named[0].id}, which the log names.")
    if size is None:
        return FittingGpus((), None)
    if len(by_size) == 1:
        return FittingGpus(by_size, f"GPU assumed to be {by_size[0].id}, from the memory size in the log ({size}).")
    vendor = " of AMD" if log.platform == "rocm" else " of Intel" if log.platform == "xpu" else ""
    if not by_size:
        return FittingGpus((), f"No GPU profile{vendor} has {size}, as in the log: name one with --gpu.")
    ids = [gpu.id for gpu in by_size]
    shown = ", ".join(ids[:_MOST_NAMED]) + (", ..." if len(ids) > _MOST_NAMED else "")
    return FittingGpus(by_size, f"A GPU with {size}, as in the log, may be {shown}: name it with --gpu.")


def _allowed(log: StartupLog) -> tuple[GpuProfile, ...]:
    """Profiles of the platform that can be: bfloat16 takes compute capability 8.0, FlashAttention 3 is for 9.0.

    Some lines name the capability itself.
    """
    vendors = {"rocm": "amd", "xpu": "intel"}
    gpus = [gpu for gpu in load_gpus() if not gpu.is_cpu and gpu.vendor == vendors.get(log.platform or "", gpu.vendor)]
    if log.settings.dtype == "bfloat16":
        gpus = [gpu for gpu in gpus if gpu.vendor != "nvidia" or float(gpu.compute_capability) >= 8]
    if log.platform is None and log.flash_attention == 3:
        gpus = [gpu for gpu in gpus if gpu.compute_capability == "9.0"]
    if log.platform is None and log.capability is not None:
        gpus = [gpu for gpu in gpus if gpu.compute_capability == log.capability]
    return tuple(gpus)


def _profile(name: str) -> GpuProfile | None:
    """The profile of a device as the driver names it, ``NVIDIA_H100_80GB_HBM3`` in the name of a file."""
    words = " ".join(name.replace("_", " ").split()).lower()
    for each in (words, _MEMORY_IN_NAME.sub("", words), words.removesuffix(" laptop gpu")):
        try:
            return find_gpu(each)
        except UsageError:
            continue
    return None


def _of_size(log: StartupLog, gpus: Sequence[GpuProfile]) -> tuple[tuple[GpuProfile, ...], str | None]:
    """The profiles of the logged size, and that size in words; None where the log does not tell it."""
    memory = log.memory
    if memory.total_bytes is not None:
        total, size = memory.total_bytes, format_bytes(memory.total_bytes)
        close = [gpu for gpu in gpus if abs(gpu.memory_bytes - total) <= _OTHER_BYTES]
        is_plain = any(abs(gpu.memory_bytes - total) <= _SAME_BYTES for gpu in close)
        return tuple(close if is_plain else _within(gpus, total, total, _NEAR_SHARE)), size
    if log.engine == "sglang" and memory.free_bytes is not None:
        total = memory.free_bytes + CONTEXT_BYTES
        size = f"about {format_bytes(total)}"
        same = _within(gpus, total, total, _SAME_SHARE)
        near = _within(gpus, memory.free_bytes, memory.free_bytes + _MOST_IN_USE_BYTES, 0)
        return tuple(same if len(same) == 1 else near), size
    if memory.total_range is not None:
        low, high = memory.total_range
        return tuple(_within(gpus, low, high, _NEAR_SHARE / 4)), f"{format_bytes(low)} to {format_bytes(high)}"
    return (), None


def _within(gpus: Sequence[GpuProfile], low: float, high: float, share: float) -> list[GpuProfile]:
    return [gpu for gpu in gpus if low * (1 - share) <= gpu.memory_bytes <= high * (1 + share)]
