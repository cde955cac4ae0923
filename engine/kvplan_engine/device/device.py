"""The device an engine runs on: how much memory it has, and how much of it is taken."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from kvplan_engine.device.process_memory import available_memory_bytes, private_memory_bytes
from kvplan_engine.errors import EngineError
from kvplan_engine.memory import CPU_OVERHEAD_BYTES

logger = logging.getLogger("kvplan_engine")

_DEFAULT_CPU_BYTES = 4 * 1024**3


@dataclass(frozen=True, slots=True)
class Device:
    """torch_device with ``total_bytes`` of memory, of which ``overhead_bytes`` are kept back for what is no tensor.

    baseline_bytes: what the process held before the engine took anything; not part of the device's account.
    """

    torch_device: torch.device
    name: str
    total_bytes: int
    overhead_bytes: int
    baseline_bytes: int

    def used_bytes(self) -> int:
        """Memory taken since the device was opened."""
        return private_memory_bytes() - self.baseline_bytes


def open_device(kind: str, memory_bytes: int | None) -> Device:
    """``auto`` takes a GPU where there is one. EngineError when ``kind`` cannot be had."""
    if kind == "cuda" and not torch.cuda.is_available():
        raise EngineError(
            "there is no CUDA device here.", hint="use device='cpu', or device='auto' to take what there is"
        )
    if kind == "cuda" or (kind == "auto" and torch.cuda.is_available()):
        raise EngineError("the engine does not run on CUDA devices yet.", hint="use device='cpu'")
    return _open_cpu(memory_bytes)


def _open_cpu(memory_bytes: int | None) -> Device:
    available = available_memory_bytes()
    total = memory_bytes or min(_DEFAULT_CPU_BYTES, available // 2)
    if total > available:
        raise EngineError(
            f"device_memory {total / 1024**3:.2f} GiB is more than is free here: {available / 1024**3:.2f} GiB.",
            hint="lower device_memory",
        )
    if memory_bytes is None:
        logger.info("CPU device with %.2f GiB (device_memory sets it)", total / 1024**3)
    return Device(torch.device("cpu"), cpu_name(), total, CPU_OVERHEAD_BYTES, private_memory_bytes())


def cpu_name() -> str:
    """The processor's name, as Linux tells it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "CPU"


def resolve_dtype(dtype: str, model_dtype: str, device: Device) -> str:
    """``auto``: the model's own dtype where the device computes in it, float32 on CPUs without bfloat16 units."""
    if dtype != "auto":
        return dtype
    if device.torch_device.type == "cpu":
        return "bfloat16" if model_dtype != "float32" and _cpu_has_bfloat16() else "float32"
    return model_dtype


def _cpu_has_bfloat16() -> bool:
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    return "avx512_bf16" in flags or "amx_bf16" in flags
