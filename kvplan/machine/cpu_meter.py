"""How busy other processes keep the CPU while something is measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from kvplan.machine.host import usable_cores


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
