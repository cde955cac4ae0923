"""The parent's end of `kvplan doctor`: the driver's facts, and those of a worker, which opens the device. No torch."""

from __future__ import annotations

import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kvplan import __version__
from kvplan.catalog.models import resolve_model
from kvplan.errors import KvplanError
from kvplan.machine.visible_gpu import first_visible_gpu, gpu_of
from kvplan.workers.process import WorkerDied, WorkerProcess, WorkerTimeout

SCHEMA: Final = "kvplan.doctor/1"
WORKER_COMMAND: Final = (sys.executable, "-m", "kvplan.doctor.worker")
_PATIENCE_SECONDS: Final = 900.0
_AGAIN: Final = "run it again: a kernel that ended the worker is not tried a second time, and named"


def examine(model: str, device: str, dtype: str = "auto", *, checks_anew: bool = False) -> dict[str, Any]:
    """The report on this machine for ``model``. KvplanError for an unknown model, or where no GPU can be had."""
    spec = resolve_model(model)
    order = {
        "type": "order",
        "model": dict(spec.raw_config),
        "device": device,
        "dtype": dtype,
        "checks_anew": checks_anew,
    }
    found = _ask(order)
    uuid = str((found.get("gpu") or {}).pop("uuid", ""))  # whose GPU it is, is nobody's business
    report = {
        "schema": SCHEMA,
        "model": spec.served_id,
        "versions": {"kvplan": __version__, "python": platform.python_version(), "torch": found.pop("torch")},
        "system": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        "driver": driver_facts(uuid) if device in ("auto", "cuda") else {},
        **found,
    }
    return without_home(report)


def _ask(order: Mapping[str, Any]) -> dict[str, Any]:
    """One worker's answer."""
    process = WorkerProcess(WORKER_COMMAND)
    try:
        process.send(order)
        message = process.receive(time.monotonic() + _PATIENCE_SECONDS, "The worker did not answer in fifteen minutes.")
    except WorkerTimeout as late:
        raise KvplanError(str(late), hint=_AGAIN) from None
    except WorkerDied as death:
        is_killed = death.signal_number == signal.SIGKILL
        raise KvplanError(str(death), hint=None if is_killed else _AGAIN) from None
    finally:
        process.kill()
    if message["type"] == "error":
        raise KvplanError(message["message"], hint=message["hint"])
    return dict(message["report"])


def without_home(value: Any) -> Any:
    """The same with ``~`` for this user's home, wherever a text has it: the report is pasted into issues."""
    if isinstance(value, str):
        home = str(Path.home())
        return value if home == "/" else value.replace(home, "~")
    if isinstance(value, Mapping):
        return {key: without_home(each) for key, each in value.items()}
    return [without_home(each) for each in value] if isinstance(value, (list, tuple)) else value


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
