"""Which GPU a process computes on: the driver lists all of them, CUDA those that ``CUDA_VISIBLE_DEVICES`` names."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class ClockReadings:
    """Mean and lowest clock in MHz, and the mean in percent of the GPU's maximum clock; None without readings."""

    mean_mhz: float | None = None
    min_mhz: int | None = None
    pct_of_max: float | None = None


@dataclass(slots=True)
class GpuClockMeter:
    """Reads the clock of the first GPU that this process may use whenever ``read`` is called; nothing without a driver.

    Only readings taken while requests were being served belong to a trial: ``start`` drops the earlier ones.
    """

    _driver: ModuleType | None = None
    _handle: Any = None
    _max_mhz: int = 0
    _readings_mhz: list[int] = field(default_factory=list)

    @staticmethod
    def open(uuid: str = "") -> GpuClockMeter:
        """A meter of the GPU that a worker opened, else of the first one, or one that reads nothing."""
        try:
            import pynvml
        except ImportError:
            return GpuClockMeter()
        try:
            pynvml.nvmlInit()
            handle = gpu_of(pynvml, uuid) if uuid else first_visible_gpu(pynvml)
            if handle is None:
                return GpuClockMeter()
            max_mhz = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
        except pynvml.NVMLError:
            return GpuClockMeter()
        return GpuClockMeter(pynvml, handle, int(max_mhz))

    def start(self) -> None:
        self._readings_mhz = []

    def read(self) -> None:
        """One reading; a driver that does not answer costs the reading."""
        if self._driver is None:
            return
        try:
            clock = self._driver.nvmlDeviceGetClockInfo(self._handle, self._driver.NVML_CLOCK_SM)
        except self._driver.NVMLError:
            return
        self._readings_mhz.append(int(clock))

    def readings(self) -> ClockReadings:
        """A summary of the readings since ``start``."""
        if not self._readings_mhz:
            return ClockReadings()
        mean = sum(self._readings_mhz) / len(self._readings_mhz)
        share = 100 * mean / self._max_mhz if self._max_mhz else None
        return ClockReadings(mean, min(self._readings_mhz), share)
