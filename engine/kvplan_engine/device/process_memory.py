"""This process's memory, read from Linux, and a limit on it that Linux enforces.

``RLIMIT_DATA`` bounds private writable memory (the kernel's ``VmData``): an allocation beyond it fails in ``mmap`` or
``brk``, torch's CPU allocator raises, and after freeing memory the process can continue. File mappings do not count.
"""

from __future__ import annotations

import ctypes
import platform
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

# What limits on groups of processes leave of memory, as containers have them (cgroups(7), both versions).
#
# The planner reads the same for itself (kvplan/machine/host.py): neither package imports the other.


class _Files(NamedTuple):
    """Where a version keeps the groups, their files, and the field of ``memory.stat`` for files that are cached."""

    root: Path
    limit: str
    used: str
    cached: str


_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def available_in_groups() -> list[int]:
    """Bytes that each group with a limit can still have, from this process's own to the root."""
    try:
        lines = [line.split(":", 2) for line in _OWN.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return []
    second = _Files(_GROUPS, "memory.max", "memory.current", "inactive_file ")
    first = _Files(_GROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
    files_of = {"": second, "memory": first}
    found = []
    for _, controllers, path in lines:
        if controllers in files_of:
            files = files_of[controllers]
            own = files.root / path.lstrip("/")
            groups = (own, *own.parents[: len(own.relative_to(files.root).parts)])
            found += [room for group in groups if (room := _available_in(group, files)) is not None]
    return found


def _available_in(group: Path, files: _Files) -> int | None:
    """None where there is no limit. Cached files are given up when memory is needed."""
    try:
        limit, used = (int((group / name).read_text(encoding="ascii")) for name in (files.limit, files.used))
        lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    cached = next((int(line.split()[1]) for line in lines if line.startswith(files.cached)), 0)
    return max(0, limit - used) + cached


# The C library's heap, while weights are loaded.
#
# glibc maps large allocations one by one and unmaps them when they are freed; smaller ones share a heap, whose holes
# stay with the process. What counts as large grows with what has been freed, up to 32 MiB: after the first tensors of a
# model on their way into their format, all others lie in that heap, between parts of weights that stay. A model of 1 B
# weights in int8 left 70 MiB of holes so, in int4 180 MiB, which the KV pool then lacked.


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGE_WHILE_LOADING = 1024**2
# As far as glibc itself raises them on a machine of 64 bits (DEFAULT_MMAP_THRESHOLD_MAX; twice that is kept untrimmed),
# which steps that allocate need: mapping a tensor anew for each of them costs more than its arithmetic.
_LARGE_WHILE_RUNNING = 32 * 1024**2


def heap_options() -> Callable[[int, int], int] | None:
    """glibc's mallopt; None with another C library."""
    return getattr(ctypes.CDLL(None), "mallopt", None) if "glibc" in platform.libc_ver() else None


@contextmanager
def large_tensors_apart() -> Iterator[None]:
    """Within, a tensor of 1 MiB or more is mapped by itself, and leaves nothing behind when it is freed.

    With another C library than glibc nothing is changed.
    """
    set_option = heap_options()
    if set_option is None:
        yield
        return
    set_option(_MMAP_THRESHOLD, _LARGE_WHILE_LOADING)
    try:
        yield
    finally:
        set_option(_MMAP_THRESHOLD, _LARGE_WHILE_RUNNING)
        set_option(_TRIM_THRESHOLD, 2 * _LARGE_WHILE_RUNNING)


_STATUS = Path("/proc/self/status")
_DEFAULT_CPU_BYTES = 4 * 1024**3


def private_memory_bytes() -> int:
    """Private writable memory that this process has mapped (VmData): what RLIMIT_DATA bounds."""
    return _status_bytes("VmData")


def resident_memory_bytes() -> int:
    """Physical memory that this process holds now (VmRSS)."""
    return _status_bytes("VmRSS")


def available_memory_bytes() -> int:
    """Memory that the machine can still provide without swapping (MemAvailable), within a container's limits."""
    return min([machine_available_bytes(), *available_in_groups()])


def machine_available_bytes() -> int:
    """The same whatever a container's limits are: cached files, which are given up for it, count as available."""
    return _field_bytes(Path("/proc/meminfo").read_text(encoding="ascii"), "MemAvailable")


def default_cpu_bytes(num_devices: int = 1) -> int:
    """Memory of a CPU device whose size nobody chose: 4 GiB, or half of what is free, over all devices, if less."""
    return min(_DEFAULT_CPU_BYTES, available_memory_bytes() // 2 // num_devices)


def limit_private_memory(bytes_above_now: int) -> int:
    """Let this process map at most ``bytes_above_now`` more private memory; returns the limit, in bytes."""
    limit = private_memory_bytes() + bytes_above_now
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return limit


def _status_bytes(field: str) -> int:
    return _field_bytes(_STATUS.read_text(encoding="ascii"), field)


def _field_bytes(text: str, field: str) -> int:
    match = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    assert match is not None, f"{field} is missing"
    return int(match.group(1)) * 1024


class PeakMemory:
    """The peak of physical memory in a block of code, in bytes above its start (VmHWM, reset at entry).

    If the kernel does not allow a reset, ``bytes_above_start`` is the growth from start to end.
    """

    bytes_above_start = 0

    def __enter__(self) -> PeakMemory:
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            self._field = "VmHWM"
        except OSError:
            self._field = "VmRSS"
        self._start = resident_memory_bytes()
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes_above_start = max(0, _status_bytes(self._field) - self._start)
