"""What is known of the machine without torch: processor, free memory, GPU, and how busy others keep it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

from kvplan.errors import KvplanError
from kvplan.machine.host import cpu_name
from kvplan.units import GIB, format_bytes

_DEFAULT_CPU_BYTES: Final = 4 * GIB


@dataclass(frozen=True, slots=True)
class SweepDevice:
    """Where the trials run. ``notice`` is one line for the user, or None.

    engine_memory_bytes: the total to tell the engine; None lets it ask the GPU itself.
    """

    kind: str
    name: str
    memory_bytes: int
    num_cores: int
    engine_memory_bytes: int | None = None
    notice: str | None = None


def detect_device(wanted: str, memory_bytes: int | None, *, weight_bytes: int = 0) -> SweepDevice:
    """``auto`` takes a GPU that both the driver and the installed torch can use, else the CPU.

    memory_bytes: the device's total as the user gave it, or None for the GPU's own, or a share of this machine's.
    KvplanError when ``cuda`` is wanted and cannot be had, or when the CPU has less memory than asked for.
    """
    if wanted != "cpu":
        gpu = _first_gpu()
        if gpu is not None and not _torch_is_cpu_build():
            name, total = gpu
            given = None if memory_bytes is None else min(memory_bytes, total)
            return SweepDevice("cuda", name, given or total, os.cpu_count() or 1, given)
        reason = "no NVIDIA driver answers" if gpu is None else f"the installed torch has no CUDA for the {gpu[0]}"
        if wanted == "cuda":
            raise KvplanError(f"There is no CUDA device to sweep on: {reason}.", hint="use --device cpu")
        found = "No GPU found" if gpu is None else f"A GPU is here, but {reason}"
        return _cpu_device(memory_bytes, weight_bytes, f"{found}: running on the CPU")
    return _cpu_device(memory_bytes, weight_bytes, "CPU device")


def _cpu_device(memory_bytes: int | None, weight_bytes: int, what: str) -> SweepDevice:
    available = available_memory_bytes()
    total = memory_bytes or min(max(_DEFAULT_CPU_BYTES, _whole_gib(2 * weight_bytes)), available // 2)
    if total > available:
        raise KvplanError(
            f"--device-memory {format_bytes(total)} is more than the {format_bytes(available)} this machine has free.",
            hint="give less, for instance --device-memory " + format_bytes(available // 2, digits=0).replace(" ", ""),
        )
    given = "" if memory_bytes else " (--device-memory sets it)"
    notice = f"{what}, {os.cpu_count()} cores, device memory {format_bytes(total)}{given}"
    return SweepDevice("cpu", cpu_name(), total, os.cpu_count() or 1, total, notice)


def _whole_gib(number: int) -> int:
    return -(-number // GIB) * GIB


def _first_gpu() -> tuple[str, int] | None:
    """Name and usable bytes of the first GPU, or None."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        name = pynvml.nvmlDeviceGetName(handle)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError:
        return None
    # What CUDA calls the total is what the driver has not reserved for itself.
    return str(name), int(memory.total - memory.reserved)


def _torch_is_cpu_build() -> bool:
    """Read from the installed package's version, because importing torch takes seconds."""
    try:
        return metadata.version("torch").endswith("+cpu")
    except metadata.PackageNotFoundError:
        return True


def available_memory_bytes() -> int:
    """What the machine can give without swapping (Linux: MemAvailable; elsewhere half of its memory)."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


class CpuMeter:
    """How much of the machine's processor time others took since this object was made."""

    def __init__(self) -> None:
        self._busy = _busy_seconds()
        self._own = _own_seconds()
        self._started = time.perf_counter()

    def other_cpu_pct(self) -> float | None:
        """Percent of all cores' time; None where the system does not tell."""
        busy, elapsed = _busy_seconds(), time.perf_counter() - self._started
        if busy is None or self._busy is None or elapsed <= 0:
            return None
        others = busy - self._busy - (_own_seconds() - self._own)
        return max(0.0, 100 * others / (elapsed * (os.cpu_count() or 1)))


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system


def _busy_seconds() -> float | None:
    """Time that all cores have worked (user, nice, system, interrupts), from /proc/stat."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts = (int(value) for value in fields[:7])
    return (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK")


@cache
def has_bfloat16_units() -> bool:
    """Whether this processor multiplies bfloat16 in hardware (AVX512-BF16 or AMX)."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
