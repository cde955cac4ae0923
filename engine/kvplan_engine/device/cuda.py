"""A CUDA device as the driver reports it."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable

import torch

from kvplan_engine.device.cuda_absence import refuse_unusable_gpu, why_no_gpu
from kvplan_engine.device.overhead import CUDA_OVERHEAD_BYTES
from kvplan_engine.errors import EngineError

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
        # What an engine of this process left behind, in cycles of objects or in torch's cache, is nobody else's memory.
        gc.collect()
        torch.cuda.empty_cache()
        _make_context(self.torch_device)
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
        self.is_asynchronous = True
        self._capture_stream: torch.cuda.Stream | None = None

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

    # ---- the queue

    def host_buffer(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(like, device="cpu", pin_memory=True)

    def mark(self) -> CudaMark:
        return CudaMark(self.torch_device)

    def graph_memory(self) -> object:
        return torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], None], memory: object) -> torch.cuda.CUDAGraph:
        """``work`` as a graph. torch.cuda.graph() would collect garbage and empty its caches before each."""
        if self._capture_stream is None:
            self._capture_stream = torch.cuda.Stream(self.torch_device)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.torch_device)
        with torch.cuda.stream(self._capture_stream):
            graph.capture_begin(pool=memory)  # type: ignore[arg-type]  # what graph_memory() gave
            try:
                work()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # that the capture is void: the first error says why
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph

    def is_usable(self) -> bool:
        """A small piece of work, waited for: after a sticky error this fails like everything else."""
        try:
            torch.ones(1, device=self.torch_device).add_(1)
            torch.cuda.synchronize(self.torch_device)
        except RuntimeError:
            return False
        return True


class CudaMark:
    """An event behind what is queued on the current stream."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(device))

    def wait(self) -> None:
        self._event.synchronize()


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


def _make_context(device: torch.device) -> None:
    """The context and cuBLAS's handle, which take memory: now, so that they are counted and cannot fail later."""
    small = torch.ones(1, 1, device=device)
    torch.mm(small, small)
    torch.cuda.synchronize(device)


def open_cuda(memory_bytes: int | None) -> CudaDevice:
    """The current GPU; EngineError in one line when there is none, or none that can be used."""
    if not torch.cuda.is_available():
        reason = why_no_gpu()
        raise EngineError(reason.sentence, hint=reason.hint or "use device='cpu', or 'auto' to take what there is")
    refuse_unusable_gpu()
    return CudaDevice(memory_bytes)
