"""Who holds a GPU's memory: this process's tensors, its libraries and context, other processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class CudaMemory:
    """One reading; the parts add up to ``total_bytes`` as far as the driver tells them apart.

    process_bytes and other_process_bytes come from NVML, which inside some containers names no process: None then.
    """

    total_bytes: int
    free_bytes: int
    allocated_bytes: int
    """Held by torch's tensors."""
    cached_bytes: int
    """Kept by torch's allocator for tensors to come."""
    process_bytes: int | None
    """All that this process holds, its context and libraries included."""
    other_process_bytes: int | None

    @property
    def overhead_bytes(self) -> int | None:
        """What this process holds beside torch's allocator: context, modules, cuBLAS, graphs."""
        if self.process_bytes is None:
            return None
        return max(0, self.process_bytes - self.allocated_bytes - self.cached_bytes)

    def unexplained_bytes(self) -> int:
        """Taken, and neither by torch nor by a process that NVML names."""
        known = self.allocated_bytes + self.cached_bytes
        if self.process_bytes is not None:
            known = self.process_bytes + (self.other_process_bytes or 0)
        return max(0, self.total_bytes - self.free_bytes - known)


def read_cuda_memory(device: torch.device, nvml: Any = None) -> CudaMemory:
    """A reading of ``device``; ``nvml`` is pynvml, or its stand-in in tests."""
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    allocated_bytes = torch.cuda.memory_allocated(device)
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    held = _bytes_by_process(uuid, nvml)
    own = None if held is None else held.pop(os.getpid(), None)
    return CudaMemory(
        total_bytes=total_bytes,
        free_bytes=free_bytes,
        allocated_bytes=allocated_bytes,
        cached_bytes=torch.cuda.memory_reserved(device) - allocated_bytes,
        process_bytes=own,
        other_process_bytes=None if held is None or own is None else sum(held.values()),
    )


def _bytes_by_process(uuid: str, nvml: Any) -> dict[int, int] | None:
    """Bytes by process id on the device, or None when NVML does not say."""
    if nvml is None:
        import pynvml

        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        # by UUID: CUDA_VISIBLE_DEVICES numbers devices its own way
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()
    if any(process.usedGpuMemory is None for process in processes):
        return None
    return {process.pid: process.usedGpuMemory for process in processes}
