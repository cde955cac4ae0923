"""The host: its processor, and the memory it has free.

Read from /proc rather than with psutil: what is needed here is a dozen lines, and a compiled dependency that takes a
tenth of a second to import would know neither the processor's name nor its instruction sets.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


@cache
def cpu_name() -> str:
    """The processor's name as the operating system gives it; ``CPU`` if it gives none."""
    lines = _cpuinfo().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")


@cache
def has_bfloat16_units() -> bool:
    """Whether this processor multiplies bfloat16 in hardware (AVX512-BF16 or AMX)."""
    flags = _cpuinfo()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def available_memory_bytes() -> int:
    """Memory that can be had without swapping (Linux: MemAvailable; elsewhere half of the total)."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
