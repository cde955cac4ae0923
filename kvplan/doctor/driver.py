"""The GPU as the driver lists it (NVML), which may be another than CUDA's: memory, MIG, clocks, power, neighbours."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from kvplan.machine.visible_gpu import first_visible_gpu, gpu_of


def driver_facts(uuid: str = "") -> dict[str, Any]:
    """Facts of the GPU that CUDA knows by ``uuid``, else the first one; what the driver does not answer is left out."""
    try:
        import pynvml
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
        handle = gpu_of(pynvml, uuid) if uuid else first_visible_gpu(pynvml)
    except pynvml.NVMLError as error:
        return {"error": str(error)}
    return {} if handle is None else _facts_of(pynvml, handle)


def _facts_of(nvml: ModuleType, handle: Any) -> dict[str, Any]:
    sm = getattr(nvml, "NVML_CLOCK_SM", 1)
    asked: dict[str, Callable[[], Any]] = {
        "name": lambda: str(nvml.nvmlDeviceGetName(handle)),
        "driver_version": lambda: str(nvml.nvmlSystemGetDriverVersion()),
        "memory": lambda: _memory(nvml, handle),
        "mig": lambda: _mig(nvml, handle),
        "clock_mhz": lambda: int(nvml.nvmlDeviceGetClockInfo(handle, sm)),
        "max_clock_mhz": lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, sm)),
        "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "power_cap_watts": lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000,
        "other_processes": lambda: _other_processes(nvml, handle),
    }
    facts = {name: _answer(nvml, ask) for name, ask in asked.items()}
    return {name: value for name, value in facts.items() if value is not None}


def _answer(nvml: ModuleType, ask: Callable[[], Any]) -> Any:
    """None where the driver has no answer, or an old one has no such question."""
    try:
        return ask()
    except (nvml.NVMLError, AttributeError):
        return None


def _memory(nvml: ModuleType, handle: Any) -> dict[str, int]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return {name: int(getattr(memory, name)) for name in ("total", "reserved", "used", "free")}


def _mig(nvml: ModuleType, handle: Any) -> str:
    if nvml.nvmlDeviceIsMigDeviceHandle(handle):
        return "a slice"
    current, _ = nvml.nvmlDeviceGetMigMode(handle)
    return "on" if current else "off"


def _other_processes(nvml: ModuleType, handle: Any) -> list[int]:
    """Bytes of each process but this one's; 0 where the driver does not say."""
    found = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return [int(each.usedGpuMemory or 0) for each in found if each.pid != os.getpid()]
