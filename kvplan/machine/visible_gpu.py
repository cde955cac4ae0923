"""Which GPU a process computes on: the driver lists all of them, CUDA those that ``CUDA_VISIBLE_DEVICES`` names."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any


def first_visible_gpu(driver: ModuleType) -> Any:
    """The driver's handle of CUDA's first device, None where no GPU may be used. driver: pynvml, initialized.

    The driver's errors pass. A list that names something else (a MIG instance) gives the machine's first GPU.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return driver.nvmlDeviceGetHandleByIndex(0)
    if hides_every_gpu(visible):
        return None
    first = _first(visible)
    if first.startswith("GPU-"):
        return driver.nvmlDeviceGetHandleByUUID(first)
    return driver.nvmlDeviceGetHandleByIndex(int(first) if first.isdigit() else 0)


def hides_every_gpu(visible: str) -> bool:
    """Whether ``visible``, of ``CUDA_VISIBLE_DEVICES``, leaves a process no GPU."""
    return _first(visible) in ("", "-1", "NoDevFiles")


def _first(visible: str) -> str:
    return visible.split(",")[0].strip()
