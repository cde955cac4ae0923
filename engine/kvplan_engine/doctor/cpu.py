"""Facts of the processor: what the CPU kernels are compiled for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from kvplan_engine.device.device import cpu_name
from kvplan_engine.device.process_memory import available_memory_bytes

_UNITS = {
    "AVX2": ("avx2",),
    "AVX-512": ("avx512f",),
    "AVX-512 BF16": ("avx512_bf16",),
    "AMX": ("amx_tile",),
    "AMX BF16": ("amx_bf16",),
    "NEON": ("asimd",),
    "SVE": ("sve",),
}
"""The flags of /proc/cpuinfo that stand for each unit, by its name."""


def cpu_facts() -> dict[str, Any]:
    """Name, units, threads and free memory."""
    return {
        "name": cpu_name(),
        "units": cpu_units(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")),
        "num_threads": torch.get_num_threads(),
        "available_bytes": available_memory_bytes(),
    }


def cpu_units(cpuinfo: str) -> list[str]:
    """Units for vectors and matrices that the text of /proc/cpuinfo lists."""
    lines = [line.partition(":")[2] for line in cpuinfo.splitlines() if line.startswith(("flags", "Features"))]
    flags = set(lines[0].split()) if lines else set()
    return [name for name, wanted in _UNITS.items() if flags.issuperset(wanted)]
