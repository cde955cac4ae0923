"""How fast a GPU really ran while a trial was timed: its clock, read from the driver now and then."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any


@dataclass(slots=True)
class GpuClockMeter:
    """Reads the first GPU's clock whenever ``read`` is called; knows nothing where there is no driver.

    Only readings taken while requests were being served belong to a trial: ``start`` forgets the earlier ones.
    """

    _driver: ModuleType | None = None
    _handle: Any = None
    _highest_mhz: int = 0
    _readings_mhz: list[int] = field(default_factory=list)

    @staticmethod
    def open() -> GpuClockMeter:
        """A meter of the first GPU, or one that knows nothing."""
        try:
            import pynvml
        except ImportError:
            return GpuClockMeter()
        try:
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            highest = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
        except pynvml.NVMLError:
            return GpuClockMeter()
        return GpuClockMeter(pynvml, handle, int(highest))

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

    def figures(self) -> dict[str, float | None]:
        """The row's columns: mean and lowest clock in MHz, and the mean in percent of the highest the GPU has."""
        if not self._readings_mhz:
            return {"gpu_clock_mean_mhz": None, "gpu_clock_min_mhz": None, "gpu_clock_pct": None}
        mean = sum(self._readings_mhz) / len(self._readings_mhz)
        share = 100 * mean / self._highest_mhz if self._highest_mhz else None
        return {"gpu_clock_mean_mhz": mean, "gpu_clock_min_mhz": min(self._readings_mhz), "gpu_clock_pct": share}
