"""Why no GPU is found, or why the one present cannot be used: each a sentence and a way out."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.cuda.launching.driver import current_runtime, load_driver
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError


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
