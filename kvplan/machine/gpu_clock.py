"""The GPU clock while a trial was timed, read from the driver now and then."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from kvplan.machine.visible_gpu import first_visible_gpu, gpu_of


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
