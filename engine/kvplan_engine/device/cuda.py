"""A CUDA device as the driver reports it."""

from __future__ import annotations

import logging

import torch

from kvplan_engine.errors import EngineError
from kvplan_engine.memory import CUDA_OVERHEAD_BYTES

logger = logging.getLogger("kvplan_engine")

# What libraries set up in the first steps beside the context that exists when the device is opened: cuBLAS's
# workspace, the kernels' modules. The profile step measures it and raises the reserve where it is more.
_LIBRARY_BYTES = 256 * 1024**2


class CudaDevice:
    """torch's current GPU. total_bytes: what the driver reports, or less where the engine is told to take less.

    overhead_bytes: at least what is taken when the device is opened (this process's context and whatever other
    processes hold) and what libraries will take.
    """

    def __init__(self, total_bytes: int | None) -> None:
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        torch.zeros(1, device=self.torch_device)  # makes the context, which takes memory of its own
        free, driver_total = torch.cuda.mem_get_info(self.torch_device)
        if total_bytes is not None and total_bytes > driver_total:
            wanted, there = total_bytes / 1024**3, driver_total / 1024**3
            raise EngineError(
                f"device_memory {wanted:.2f} GiB is more than the GPU has: {there:.2f} GiB.",
                hint="lower device_memory",
            )
        self.name = torch.cuda.get_device_name(self.torch_device)
        self.total_bytes = total_bytes or driver_total
        self.overhead_bytes = max(CUDA_OVERHEAD_BYTES, driver_total - free + _LIBRARY_BYTES)

    def used_bytes(self) -> int:
        """Everything the driver counts as taken, other processes' memory included."""
        free, driver_total = torch.cuda.mem_get_info(self.torch_device)
        return driver_total - free

    def peak(self) -> CudaPeak:
        return CudaPeak(self.torch_device)

    def release_unused(self) -> None:
        torch.cuda.empty_cache()

    def auto_dtype(self, model_dtype: str) -> str:
        """The model's own dtype; float16 for bfloat16 on GPUs before compute capability 8.0, which lack it."""
        if model_dtype == "bfloat16" and torch.cuda.get_device_capability(self.torch_device) < (8, 0):
            logger.warning("%s has no bfloat16: running in float16", self.name)
            return "float16"
        return model_dtype


class CudaPeak:
    """The most that tensors took in a block of code above what they held when it began."""

    bytes_above_start = 0

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __enter__(self) -> CudaPeak:
        torch.cuda.reset_peak_memory_stats(self._device)
        self._start = torch.cuda.memory_allocated(self._device)
        return self

    def __exit__(self, *_: object) -> None:
        torch.cuda.synchronize(self._device)
        self.bytes_above_start = torch.cuda.max_memory_allocated(self._device) - self._start


def open_cuda(memory_bytes: int | None) -> CudaDevice:
    """The current GPU; EngineError in one line when there is none."""
    if not torch.cuda.is_available():
        raise EngineError("there is no CUDA device here.", hint="use device='cpu', or 'auto' to take what there is")
    return CudaDevice(memory_bytes)
