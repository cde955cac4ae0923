"""The device that measurements run on, found without torch.

The device that a worker opened, as it says itself: what the driver lists is not always what torch can use.

Where the driver lists a GPU, a worker is asked before anything is planned. It knows which of several GPUs CUDA takes
first, what a slice of one has, and what its context and other processes leave.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Final

from kvplan.errors import KvplanError
from kvplan.machine.host import available_memory_bytes, cpu_name, total_memory_bytes, usable_cores
from kvplan.machine.visible_gpu import first_visible_gpu, has_driver, hides_every_gpu
from kvplan.units import GIB, format_bytes, plural

_DEFAULT_CPU_BYTES: Final = 4 * GIB


@dataclass(frozen=True, slots=True)
class Device:
    """A CPU or GPU with the memory it may use. ``notice`` is one line for the user, or None.

    engine_memory_bytes: the total to tell the engine; None lets it ask the GPU itself. overhead_bytes: of a GPU that a
    worker opened, see OpenedGpu; None: not known. uuid, compute_capability: as there.
    """

    kind: str
    name: str
    memory_bytes: int
    num_cores: int
    engine_memory_bytes: int | None = None
    notice: str | None = None
    overhead_bytes: int | None = None
    uuid: str = ""
    compute_capability: tuple[int, int] | None = None


def detect_device(
    requested: str,
    memory_bytes: int | None,
    *,
    weight_bytes: int = 0,
    reason: str | None = None,
    must_be_free: bool = True,
    by_our_torch: bool = True,
    ask: AskDevice | None = None,
) -> Device:
    """``auto`` takes a GPU that both the driver and the installed torch can use, else the CPU.

    memory_bytes: the device's total as the user gave it; None for the GPU's own, or a part of this machine's memory.
    reason: why it is that much, where the user did not say so. must_be_free: a CPU's memory must be there.
    by_our_torch: the torch of this environment has to drive the GPU; another engine brings its own.
    ask: asks a worker which GPU it opens, where the driver may have one; None believes the driver.
    KvplanError if ``cuda`` was requested and there is none, or if the CPU has less memory free than requested.
    """
    what, hint = "CPU device", None
    if requested != "cpu":
        found = _find_gpu(requested, ask if by_our_torch else None, by_our_torch=by_our_torch)
        if isinstance(found, OpenedGpu):
            total = found.memory_bytes
            given = None if memory_bytes is None else min(memory_bytes, total)
            return Device(
                "cuda",
                found.name,
                given or total,
                usable_cores(),
                given,
                overhead_bytes=found.overhead_bytes or None,
                uuid=found.uuid,
                compute_capability=found.compute_capability,
            )
        if requested == "cuda":
            way_out = "use --device cpu" if by_our_torch else "this engine needs one: run it where a GPU is"
            raise KvplanError(
                f"No CUDA device found ({found.sentence}).",
                hint=f"{found.hint}, or {way_out}" if found.hint else way_out,
            )
        what = "No GPU found: running on the CPU"
        if found.is_present:
            what, hint = f"A GPU is present, but {found.sentence}: running on the CPU", found.hint
    if must_be_free and memory_bytes is not None:
        _refuse_more_than_free(memory_bytes)
    device = _cpu_device(memory_bytes, weight_bytes, what, reason)
    return device if hint is None else replace(device, notice=f"{device.notice}. hint: {hint}")


def _find_gpu(requested: str, ask: AskDevice | None, *, by_our_torch: bool) -> OpenedGpu | NoGpu:
    """The GPU, as a worker says that opened it, or as the driver lists it.

    No worker is asked where it could find none: where GPUs are hidden, torch says that it is built without CUDA, or for
    ``auto`` without a driver.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    is_hidden = visible is not None and hides_every_gpu(visible)
    is_cpu_build = by_our_torch and _torch_is_cpu_build()
    if ask is not None and not is_hidden and not is_cpu_build and (requested == "cuda" or has_driver()):
        return ask()
    gpu = _first_gpu()
    if gpu is None:
        if not is_hidden and has_driver():  # a container without NVML, or a slice that NVML may not describe
            return NoGpu("a driver runs, but its NVML describes no GPU", is_present=True)
        return NoGpu(_why_none())
    if is_cpu_build:
        return NoGpu(f"the installed torch has no CUDA support for the {gpu[0]}", is_present=True)
    return OpenedGpu(*gpu, overhead_bytes=0)


def _refuse_more_than_free(total: int) -> None:
    available = available_memory_bytes()
    if total > available:
        raise KvplanError(
            f"--device-memory {format_bytes(total)} exceeds the {format_bytes(available)} that this machine has free.",
            hint="give less, for example --device-memory " + format_bytes(available // 2, digits=0).replace(" ", ""),
        )


def _cpu_device(memory_bytes: int | None, weight_bytes: int, what: str, reason: str | None) -> Device:
    available = available_memory_bytes()
    total = memory_bytes or min(max(_DEFAULT_CPU_BYTES, _whole_gib(2 * weight_bytes)), available // 2)
    reason = reason or (None if memory_bytes else "--device-memory sets it")
    given = f" ({reason})" if reason else ""
    notice = f"{what}, {plural(usable_cores(), 'core')}, device memory {format_bytes(total)}{given}"
    return Device("cpu", cpu_name(), total, usable_cores(), total, notice)


def cpu_with_memory(device: Device, memory_bytes: int, reason: str) -> Device:
    """Another machine's CPU with so much of its memory. reason: why it is that much."""
    notice = f"{device.name}, {plural(device.num_cores, 'core')}, device memory {format_bytes(memory_bytes)} ({reason})"
    return Device(device.kind, device.name, memory_bytes, device.num_cores, memory_bytes, notice)


def _whole_gib(number: int) -> int:
    return -(-number // GIB) * GIB


def _first_gpu() -> tuple[str, int] | None:
    """Name and usable bytes of the first GPU that this process may use, or None."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handle = first_visible_gpu(pynvml)
        if handle is None:
            return None
        name = str(pynvml.nvmlDeviceGetName(handle))
    except pynvml.NVMLError:
        return None
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError:  # a GPU that shares the machine's memory has none of its own to tell
        return name, total_memory_bytes()
    # What CUDA calls the total is what the driver has not reserved for itself.
    return name, int(memory.total - memory.reserved)


def _why_none() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and hides_every_gpu(visible):
        return f"CUDA_VISIBLE_DEVICES is '{visible}', which hides every GPU"
    return "no NVIDIA driver"


def _torch_is_cpu_build() -> bool:
    """Read from the installed package's version, because importing torch takes seconds."""
    try:
        return metadata.version("torch").endswith("+cpu")
    except metadata.PackageNotFoundError:
        return True


@dataclass(frozen=True, slots=True)
class OpenedGpu:
    """overhead_bytes: what the engine reserves for what is not a tensor, as measured when the GPU was opened.

    uuid: as CUDA has it, without the driver's prefix; empty where it is not told. compute_capability: None as well.
    """

    name: str
    memory_bytes: int
    overhead_bytes: int
    uuid: str = ""
    compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class NoGpu:
    """Why no GPU can be used, a sentence without a full stop. hint: what would help. is_present: one is there."""

    sentence: str
    hint: str | None = None
    is_present: bool = False


@dataclass(frozen=True, slots=True)
class Reserve:
    """What an engine that has loaded its weights keeps free of the GPU it opened, as it says before it makes a pool.

    total_bytes: of the GPU. overhead_bytes: kept for what is no tensor; graph_bytes: for captured steps. Of several
    ranks: of the smallest GPU, and the most that one of them needs.
    """

    total_bytes: int
    overhead_bytes: int
    graph_bytes: int


AskDevice = Callable[[], OpenedGpu | NoGpu]
"""Asks a worker for the GPU that it opens. KvplanError if the worker dies of it."""
