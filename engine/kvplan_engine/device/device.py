"""The device that an engine runs on: its memory, its queue of work, and the CPU as a device."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from kvplan_engine.device.allocation import CPU_OVERHEAD_BYTES, CUDA_OVERHEAD_BYTES
from kvplan_engine.device.cuda import open_cuda, why_no_usable_gpu
from kvplan_engine.device.process_memory import (
    PeakMemory,
    available_memory_bytes,
    default_cpu_bytes,
    private_memory_bytes,
)
from kvplan_engine.errors import EngineError

logger = logging.getLogger("kvplan_engine")


class PeakMeter(Protocol):
    """A context manager that measures the peak of memory in its block, in bytes above the level at its start."""

    bytes_above_start: int

    def __enter__(self) -> PeakMeter: ...

    def __exit__(self, *_: object) -> None: ...


class Mark(Protocol):
    """A position in the device's queue of work."""

    def wait(self) -> None:
        """Return when all work before it is done."""
        ...


class Graph(Protocol):
    """Work that has been captured once and can be queued again as a whole."""

    def replay(self) -> None:
        """Queue it; returns at once."""
        ...


class Device(Protocol):
    """``total_bytes`` of memory on ``torch_device``; ``overhead_bytes`` of it are reserved for what is not a tensor.

    is_asynchronous: work is queued and done later, in the order of the queue. Inputs are then written to host memory
    and copied, results must be waited for, and work can be captured as a graph.
    """

    torch_device: torch.device
    name: str
    total_bytes: int
    overhead_bytes: int
    is_asynchronous: bool

    def used_bytes(self) -> int:
        """Memory of the device that is in use now."""
        ...

    def peak(self) -> PeakMeter:
        """A meter of the memory that a block of code takes."""
        ...

    def release_unused(self) -> None:
        """Return memory of freed tensors that the allocator has kept to the device."""
        ...

    def auto_dtype(self, model_dtype: str) -> str:
        """The dtype in which to compute a model that was published in ``model_dtype``."""
        ...

    def host_buffer(self, like: torch.Tensor) -> torch.Tensor:
        """Host memory of this shape and dtype; copies to and from it need not block the host."""
        ...

    def upload(self, values: np.ndarray) -> torch.Tensor:
        """``values`` on the device, by a copy that the host does not wait for: it would wait for the queue too."""
        ...

    def mark(self) -> Mark:
        """The current end of the queue."""
        ...

    def graph_memory(self) -> object:
        """A handle of memory that graphs captured with it share; no two of them may run at once."""
        ...

    def capture(self, work: Callable[[], None], memory: object) -> Graph:
        """``work``, not done now but ready for replay. It must have run once before, and must not synchronise."""
        ...

    def is_usable(self) -> bool:
        """Whether the device still accepts work, after a failure."""
        ...


class _Now:
    """The mark of a device that does all work at once."""

    def wait(self) -> None:
        """There is nothing to wait for."""


class CpuDevice:
    """The machine's processors, with a share of its memory as device memory.

    What the process held before (interpreter, libraries) does not count, as it would not be in a GPU's memory either.
    """

    def __init__(self, total_bytes: int) -> None:
        self.torch_device = torch.device("cpu")
        self.name = cpu_name()
        self.total_bytes = total_bytes
        self.overhead_bytes = CPU_OVERHEAD_BYTES
        self.is_asynchronous = False
        self._baseline_bytes = private_memory_bytes()

    def used_bytes(self) -> int:
        return private_memory_bytes() - self._baseline_bytes

    def peak(self) -> PeakMeter:
        return PeakMemory()

    def release_unused(self) -> None:
        """Nothing to do: large tensors are mapped one by one, and freeing one unmaps it."""

    def auto_dtype(self, model_dtype: str) -> str:
        """The model's own dtype where the CPU has units for it, float32 otherwise."""
        return "bfloat16" if model_dtype != "float32" and _cpu_has_bfloat16() else "float32"

    def host_buffer(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(like)

    def upload(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values)

    def mark(self) -> Mark:
        return _Now()

    def graph_memory(self) -> object:
        return None

    def capture(self, work: Callable[[], None], memory: object) -> Graph:
        raise EngineError("the CPU device captures no graphs.")

    def is_usable(self) -> bool:
        return True


def open_device(kind: str, memory_bytes: int | None, num_ranks: int = 1) -> Device:
    """``auto`` takes a usable GPU, otherwise the CPU, and logs which. EngineError when ``kind`` is not available.

    memory_bytes: of one device; a CPU is the device of all ``num_ranks`` ranks.
    """
    if kind == "cuda":
        return open_cuda(memory_bytes)
    if kind == "auto":
        reason = why_no_usable_gpu()
        if reason is None:
            device = open_cuda(memory_bytes)
            logger.info("device auto takes the GPU: %s", device.name)
            return device
        # a GPU that is present but not used deserves a warning; a machine without one does not
        level = logging.WARNING if reason.gpu else logging.INFO
        logger.log(level, "device auto takes the CPU: %s", reason.sentence)
    return _open_cpu(memory_bytes, num_ranks)


def _open_cpu(memory_bytes: int | None, num_ranks: int) -> CpuDevice:
    available = available_memory_bytes()
    total = memory_bytes or default_cpu_bytes(num_ranks)
    if total * num_ranks > available:
        of_ranks = "" if num_ranks == 1 else f" of each of {num_ranks} ranks"
        raise EngineError(
            f"device_memory {total / 1024**3:.2f} GiB{of_ranks} is more than is free: {available / 1024**3:.2f} GiB.",
            hint="lower device_memory",
        )
    if memory_bytes is None:
        logger.info("CPU device with %.2f GiB (device_memory sets it)", total / 1024**3)
    return CpuDevice(total)


def held_beside(device: Device, weight_bytes: int) -> int:
    """Bytes of a GPU that are in use beside the weights, while there is neither workspace nor pool; 0 on a CPU.

    Context, libraries, and what other processes hold now: they may have grown since the device was opened.
    """
    return device.used_bytes() - weight_bytes if device.is_asynchronous else 0


def cpu_name() -> str:
    """The processor's name, from /proc/cpuinfo."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "CPU"


def resolve_dtype(dtype: str, model_dtype: str, device: Device) -> str:
    """``dtype``, or what suits the model and the device if it is ``auto``."""
    return device.auto_dtype(model_dtype) if dtype == "auto" else dtype


def _cpu_has_bfloat16() -> bool:
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    return "avx512_bf16" in flags or "amx_bf16" in flags


# A device whose memory is only counted: what an engine without tensors (``load_format="none"``) is measured against.
#
# It may be larger than this machine, and a GPU that is not there.


class CountedDevice(CpuDevice):
    """``total_bytes`` of memory that nothing is allocated from. kind: the device it stands for, cpu or cuda."""

    def __init__(self, kind: str, total_bytes: int) -> None:
        super().__init__(total_bytes)
        self.kind = kind
        self.overhead_bytes = CUDA_OVERHEAD_BYTES if kind == "cuda" else CPU_OVERHEAD_BYTES
        if kind == "cuda":
            self.name = "a GPU that is only counted"

    def auto_dtype(self, model_dtype: str) -> str:
        """Choose as a device with units for bfloat16 does, so that every machine counts the same bytes."""
        if self.kind == "cuda":
            return "float16" if model_dtype == "float16" else "bfloat16"
        return "bfloat16" if model_dtype != "float32" else "float32"


def count_device(kind: str, memory_bytes: int | None) -> CountedDevice:
    """``auto`` is this machine's usable GPU or its CPU. EngineError for the memory of a GPU that is not there."""
    has_gpu = kind != "cpu" and why_no_usable_gpu() is None
    if kind == "cuda" or has_gpu:
        return CountedDevice("cuda", memory_bytes or _gpu_bytes(is_here=has_gpu))
    return CountedDevice("cpu", memory_bytes or default_cpu_bytes())


def _gpu_bytes(*, is_here: bool) -> int:
    if not is_here:
        raise EngineError(
            "there is no GPU here whose memory could be counted.", hint="set device_memory, such as '80GiB'"
        )
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
