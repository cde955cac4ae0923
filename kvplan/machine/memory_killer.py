"""Whether the kernel killed a process for memory meanwhile: such a process leaves no word of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_COUNTERS: Final = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))


class KillCounter:
    """Counts from its making on, on this machine and in this control group (proc(5), cgroup-v2's memory.events)."""

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
