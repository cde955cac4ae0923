"""The host: its processor, and the memory it has free.

Read from /proc rather than with psutil: what is needed here is a dozen lines, and a compiled dependency that takes a
tenth of a second to import would know neither the processor's name nor its instruction sets.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from kvplan.machine.control_groups import rooms

_MEMORY: Final = Path("/proc/meminfo")


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


def usable_cores() -> int:
    """Cores that this process may run on, of those that the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory_bytes() -> int:
    """Memory that can be had without swapping, within a container's limits. Elsewhere than on Linux half of it all."""
    in_machine = _memory_field("MemAvailable")
    if in_machine is None:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min([in_machine, *(room.unused + room.cached for room in rooms())])


def total_memory_bytes() -> int:
    """This machine's memory, whoever uses it."""
    total = _memory_field("MemTotal")
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if total is None else total


def free_memory_bytes() -> int:
    """Memory that nobody uses, not even as a cache of files, within a container's limits. Elsewhere than on Linux 0."""
    return min([_memory_field("MemFree") or 0, *(room.unused for room in rooms())])


def _memory_field(name: str) -> int | None:
    try:
        lines = _MEMORY.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


@cache
def checkout_commit() -> str | None:
    """Return the commit hash, with ``-dirty`` if tracked files differ from it; None outside a git checkout.

    Asked once by each process: what it runs was read by then.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
