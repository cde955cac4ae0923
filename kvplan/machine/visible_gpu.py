"""Which GPU a process computes on: the driver lists all of them, CUDA those that ``CUDA_VISIBLE_DEVICES`` names."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any, Final

_DEVICE_FILES: Final = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg")
"""Of the driver on servers, on systems on a chip, and under WSL: there without NVML, too."""


def first_visible_gpu(driver: ModuleType) -> Any:
    """The driver's handle of CUDA's first device, None where no GPU may be used. driver: pynvml, initialized.

    The driver's errors pass. A slice of a GPU (MIG) has a handle of its own. Where numbers name GPUs, they are the
    driver's, which CUDA's need not be: a worker knows better.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return driver.nvmlDeviceGetHandleByIndex(0)
    if hides_every_gpu(visible):
        return None
    first = _first(visible)
    if first.startswith(("GPU-", "MIG-")):
        return _by_uuid(driver, first)
    return driver.nvmlDeviceGetHandleByIndex(int(first) if first.isdigit() else 0)


def gpu_of(driver: ModuleType, uuid: str) -> Any:
    """The driver's handle of the GPU, or of the slice of one, that CUDA knows by ``uuid``. The driver's errors pass."""
    try:
        return driver.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except driver.NVMLError:
        return driver.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")


def _by_uuid(driver: ModuleType, uuid: str) -> Any:
    """Also by the beginning of one, which CUDA takes and the driver does not."""
    try:
        return driver.nvmlDeviceGetHandleByUUID(uuid)
    except driver.NVMLError:
        for number in range(driver.nvmlDeviceGetCount()):
            handle = driver.nvmlDeviceGetHandleByIndex(number)
            if str(driver.nvmlDeviceGetUUID(handle)).startswith(uuid):
                return handle
        raise


def hides_every_gpu(visible: str) -> bool:
    """Whether ``visible``, of ``CUDA_VISIBLE_DEVICES``, leaves a process no GPU."""
    return _first(visible) in ("", "-1", "NoDevFiles")


def has_driver() -> bool:
    """Whether an NVIDIA driver runs here, whatever it lists, so that it is worth to ask a worker for its GPU."""
    if any(Path(path).exists() for path in _DEVICE_FILES):
        return True
    try:
        import pynvml
    except ImportError:
        return False
    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount()) > 0
    except pynvml.NVMLError:
        return False


def _first(visible: str) -> str:
    return visible.split(",")[0].strip()
