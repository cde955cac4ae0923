"""This process's memory, read from Linux, and a limit on it that Linux enforces.

``RLIMIT_DATA`` bounds private writable memory (the kernel's ``VmData``): an allocation beyond it fails in ``mmap`` or
``brk``, torch's CPU allocator raises, and after freeing memory the process can continue. File mappings do not count.
"""

from __future__ import annotations

import re
import resource
from pathlib import Path

from kvplan_engine.device.control_groups import available_in_groups

_STATUS = Path("/proc/self/status")
_DEFAULT_CPU_BYTES = 4 * 1024**3


def private_memory_bytes() -> int:
    """Private writable memory that this process has mapped (VmData): what RLIMIT_DATA bounds."""
    return _status_bytes("VmData")


def resident_memory_bytes() -> int:
    """Physical memory that this process holds now (VmRSS)."""
    return _status_bytes("VmRSS")


def peak_resident_bytes() -> int:
    """The most physical memory that this process ever held (VmHWM)."""
    return _status_bytes("VmHWM")


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
