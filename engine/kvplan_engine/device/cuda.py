"""An NVIDIA GPU: its memory as the driver reports it, its queue of work, graphs."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from kvplan_engine.device.allocation import CUDA_OVERHEAD_BYTES
from kvplan_engine.device.process_memory import machine_available_bytes
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.cuda.launching.driver import current_runtime, load_driver
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError

# Why no GPU is found, or why the one present cannot be used: each a sentence and a way out.


@dataclass(frozen=True, slots=True)
class Absence:
    """sentence: why torch has no GPU. hint: what would change that. gpu: name of one that is present nevertheless."""

    sentence: str
    hint: str | None = None
    gpu: str | None = None


def why_no_gpu() -> Absence:
    """The reason, for when ``torch.cuda.is_available()`` is False."""
    gpu = visible_gpu()
    if torch.version.cuda is None:
        if gpu is None:
            return Absence("no CUDA device found.")
        return Absence(
            f"there is a GPU ({gpu}), but the installed torch {torch.__version__} is built without CUDA.",
            "install torch's CUDA build (https://pytorch.org/get-started/locally)",
            gpu,
        )
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return Absence("CUDA_VISIBLE_DEVICES hides every GPU.", "unset CUDA_VISIBLE_DEVICES", gpu)
    return _why_cuda_torch_finds_none(torch.version.cuda, gpu)


def _why_cuda_torch_finds_none(built_for: str, gpu: str | None) -> Absence:
    try:
        supported = load_driver().version()
    except CudaKernelError:
        return Absence("no NVIDIA driver found (no libcuda.so.1).", "install the NVIDIA driver", gpu)
    if int(supported.split(".")[0]) < int(built_for.split(".")[0]):
        return Absence(
            f"the NVIDIA driver supports CUDA {supported}, too old for the installed torch, built for {built_for}.",
            f"update the driver, or install a torch built for CUDA {supported.split('.')[0]}",
            gpu,
        )
    present = f", although {gpu} is present" if gpu else ""
    return Absence(f"torch finds no CUDA device{present}.", "check the output of nvidia-smi", gpu)


def why_no_usable_gpu() -> Absence | None:
    """Why ``auto`` takes the CPU; None when there is a GPU on which everything runs."""
    if not torch.cuda.is_available():
        return why_no_gpu()
    try:
        refuse_unusable_gpu()
    except EngineError as error:
        return Absence(error.message, error.hint, torch.cuda.get_device_name())
    return None


def refuse_unusable_gpu() -> None:
    """EngineError in one line when the GPU cannot run torch's kernels or the engine's; called before loading."""
    runtime = current_runtime()  # raises for: older than 7.0, no NVRTC, an NVRTC that does not know the GPU
    capability = runtime.properties.capability
    known = torch.cuda.get_arch_list()
    if known and not any(_runs_on(architecture, capability) for architecture in known):
        raise EngineError(
            f"the installed torch {torch.__version__} has no kernels for {runtime.properties.name} (compute "
            f"capability {capability[0]}.{capability[1]}); it has {', '.join(known)}.",
            hint="install a torch built for this GPU: for 7.0, one of CUDA 12",
        )


def _runs_on(architecture: str, capability: tuple[int, int]) -> bool:
    """sm_86 runs on 8.6 and newer GPUs of its family; compute_86, which the driver compiles, on all newer ones."""
    kind, _, digits = architecture.partition("_")
    digits = digits.rstrip("abcdefghijklmnopqrstuvwxyz")
    if not digits.isdigit():
        return False
    version = divmod(int(digits), 10)
    return version <= capability and (kind == "compute" or version[0] == capability[0])


def visible_gpu() -> str | None:
    """Name of the GPU that ``CUDA_VISIBLE_DEVICES`` names first, else of the first one that the NVIDIA driver lists (as
    nvidia-smi does), whether torch can use it or not. Numbers are taken as the driver's.
    """
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
        if first.startswith(("GPU-", "MIG-")):
            return str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByUUID(first)))
        number = int(first) if first.isdigit() else 0
        return str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(number)))
    except pynvml.NVMLError:
        return None


logger = logging.getLogger("kvplan_engine")

# What libraries allocate in the first steps, after the context: cuBLAS's workspace, the kernels' modules. The profile
# step measures it and raises the reserve if it is more.
_LIBRARY_BYTES = 256 * 1024**2


class CudaDevice:
    """torch's current GPU. total_bytes: what the driver reports, or less if ``device_memory`` says so.

    overhead_bytes: at least what is in use when the device is opened (this process's context and whatever other
    processes hold) plus what libraries will take.
    """

    def __init__(self, total_bytes: int | None) -> None:
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        # Memory that an earlier engine of this process left in reference cycles or torch's cache would count as used.
        gc.collect()
        torch.cuda.empty_cache()
        _make_context(self.torch_device)
        free, driver_total = _free_and_total(self.torch_device)
        if total_bytes is not None and total_bytes > driver_total:
            asked_gib, total_gib = total_bytes / 1024**3, driver_total / 1024**3
            raise EngineError(
                f"device_memory {asked_gib:.2f} GiB is more than the GPU has: {total_gib:.2f} GiB.",
                hint="lower device_memory",
            )
        self.name = torch.cuda.get_device_name(self.torch_device)
        self.total_bytes = total_bytes or driver_total
        self.overhead_bytes = max(CUDA_OVERHEAD_BYTES, driver_total - free + _LIBRARY_BYTES)
        self.is_asynchronous = True
        self._capture_stream: torch.cuda.Stream | None = None

    def used_bytes(self) -> int:
        """Everything that the driver counts as used, including by other processes."""
        free, driver_total = _free_and_total(self.torch_device)
        return driver_total - free

    def peak(self) -> CudaPeak:
        return CudaPeak(self.torch_device)

    def release_unused(self) -> None:
        torch.cuda.empty_cache()

    def auto_dtype(self, model_dtype: str) -> str:
        """The model's own dtype; bfloat16 for a model in float32, as in vLLM.

        float16 instead of bfloat16 on GPUs before compute capability 8.0, which lack it.
        """
        if model_dtype == "float16":
            return "float16"
        if torch.cuda.get_device_capability(self.torch_device) >= (8, 0):
            return "bfloat16"
        if model_dtype == "bfloat16":
            logger.warning("%s has no bfloat16: running in float16", self.name)
        return "float16"

    # ---- the queue

    def host_buffer(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(like, device="cpu", pin_memory=True)

    def upload(self, values: np.ndarray) -> torch.Tensor:
        """Through pinned memory, which torch gives to nobody else before the copy is done.

        From other memory CUDA may first wait for the stream, which ends the running ahead of the host.
        """
        return torch.from_numpy(values).pin_memory().to(self.torch_device, non_blocking=True)

    def mark(self) -> CudaMark:
        return CudaMark(self.torch_device)

    def graph_memory(self) -> object:
        return torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], None], memory: object) -> torch.cuda.CUDAGraph:
        """``work`` as a graph. torch.cuda.graph() would collect garbage and empty its caches before each one."""
        if self._capture_stream is None:
            self._capture_stream = torch.cuda.Stream(self.torch_device)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.torch_device)
        with torch.cuda.stream(self._capture_stream):
            # NCCL's watchdog is a thread of its own that asks for events meanwhile: only this one's calls count
            graph.capture_begin(pool=memory, capture_error_mode="thread_local")  # type: ignore[arg-type]
            try:
                work()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # that the capture is invalid: the first error says why
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph

    def is_usable(self) -> bool:
        """Whether a small piece of work succeeds: after a sticky error it fails like everything else."""
        try:
            torch.ones(1, device=self.torch_device).add_(1)
            torch.cuda.synchronize(self.torch_device)
        except RuntimeError:
            return False
        return True


class CudaMark:
    """An event after what is now queued on the current stream."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(device))

    def wait(self) -> None:
        self._event.synchronize()


class CudaPeak:
    """The peak of tensor memory in a block of code, in bytes above its level at the start."""

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
    """Create the context and cuBLAS's handle now, so that their memory is counted and they cannot fail later."""
    small = torch.ones(1, 1, device=device)
    torch.mm(small, small)
    torch.cuda.synchronize(device)


def _free_and_total(device: torch.device) -> tuple[int, int]:
    """Return the bytes that are free and all of them, as the driver says.

    Of a GPU that shares the machine's memory, free is what the system can give.

    The driver counts cached files as used there, such as the weights that were just read, although the system gives
    them up when memory is needed (NVIDIA's "CUDA for Tegra", estimating total allocatable device memory; vLLM measures
    the same way, vllm/utils/mem_utils.py).
    """
    free, total = torch.cuda.mem_get_info(device)
    if getattr(torch.cuda.get_device_properties(device), "is_integrated", False):
        free = min(machine_available_bytes(), total)
    return free, total


def open_cuda(memory_bytes: int | None) -> CudaDevice:
    """The current GPU; EngineError in one line when there is none, or it cannot be used."""
    if not torch.cuda.is_available():
        reason = why_no_gpu()
        raise EngineError(reason.sentence, hint=reason.hint or "use device='cpu', or 'auto' to use what is available")
    refuse_unusable_gpu()
    return CudaDevice(memory_bytes)
