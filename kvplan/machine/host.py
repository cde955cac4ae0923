"""The host: its processor, the memory that limits of containers leave free, what else keeps it busy, and our checkout.

Read from /proc rather than with psutil: what is needed here is a dozen lines, and a compiled dependency that takes a
tenth of a second to import would know neither the processor's name nor its instruction sets.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

_COUNTERS: Final = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))
_ROOT: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")
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


class MemoryLeft(NamedTuple):
    """What the limit of a control group leaves, in bytes. cached: of files, which is given up when memory is needed."""

    unused: int
    cached: int


def rooms() -> list[MemoryLeft]:
    """Return what is left of each control group with a limit, from this process's own to the root.

    Containers have such limits (cgroups(7), both versions).
    """
    found = []
    for group, (limit_file, used_file, cached_field) in _groups():
        limit, used = _count(group / limit_file), _count(group / used_file)
        if limit is not None and used is not None:
            found.append(MemoryLeft(max(0, limit - used), _field(group / "memory.stat", cached_field)))
    return found


def _groups() -> list[tuple[Path, tuple[str, str, str]]]:
    """With the names of their files, and of the field for cached memory."""
    try:
        lines = [line.split(":", 2) for line in _OWN.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return []
    found = []
    for _, controllers, path in lines:
        if not controllers:
            root, names = _ROOT, ("memory.max", "memory.current", "inactive_file")
        elif controllers == "memory":
            root = _ROOT / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        own = root / path.lstrip("/")
        found += [(group, names) for group in (own, *own.parents[: len(own.relative_to(root).parts)])]
    return found


def _count(path: Path) -> int | None:
    """None where the file is not there, or says that there is no limit."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _field(path: Path, name: str) -> int:
    """0 where it is not there."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)


class KillCounter:
    """Processes that the kernel killed for memory since this object was made: they leave no word of their own.

    On this machine and in this control group (proc(5), cgroup-v2's memory.events).
    """

    def __init__(self) -> None:
        self._before = _kills()

    def has_killed(self) -> bool:
        return _kills() > self._before


def _kills() -> int:
    return max((_counted(path) for path in _COUNTERS), default=0)


def _counted(path: Path) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


class CpuMeter:
    """CPU time of other processes since this object was made. measured: that of processes that are no others either."""

    def __init__(self, measured: Callable[[], float] = lambda: 0.0) -> None:
        self._measured = measured
        self._busy = _busy_seconds()
        self._own = _own_seconds() + measured()
        self._started = time.perf_counter()

    def other_cpu_pct(self) -> float | None:
        """Percent of the time of the cores that this process may use; None if the system does not tell."""
        busy, elapsed = _busy_seconds(), time.perf_counter() - self._started
        if busy is None or self._busy is None or elapsed <= 0:
            return None
        others = busy - self._busy - (_own_seconds() + self._measured() - self._own)
        return max(0.0, 100 * others / (elapsed * usable_cores()))


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system


def _busy_seconds() -> float | None:
    """Time that the cores of this process have worked (user, nice, system, interrupts), from /proc/stat."""
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    own = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = sum(_busy_ticks(fields[1:]) for fields in map(str.split, lines) if fields and fields[0] in own)
    return ticks / os.sysconf("SC_CLK_TCK")


def _busy_ticks(fields: list[str]) -> int:
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts = (int(value) for value in fields[:7])
    return user + nice + system + interrupts + soft_interrupts


def cpu_seconds_of(pids: Iterable[int]) -> float:
    """CPU time of processes and of those that they have outlived, in seconds (proc(5)); 0 for those that are gone."""
    return sum(map(_cpu_seconds, pids))


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
