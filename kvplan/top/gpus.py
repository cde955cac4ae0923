"""Memory and clocks of this machine's GPUs, from NVIDIA's driver. No driver: no GPUs, and nothing is said."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

from kvplan.metrics.http import ServerAddress


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU now; None: the driver does not tell. clock_mhz: of its multiprocessors. busy_pct: of the last second."""

    index: int
    name: str
    used_bytes: int
    total_bytes: int
    clock_mhz: int | None = None
    max_clock_mhz: int | None = None
    busy_pct: int | None = None
    power_watts: float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class GpuReader:
    """Reads all GPUs whenever it is asked; none where there is no driver."""

    def __init__(self, driver: ModuleType | None = None) -> None:
        self._driver = driver
        self._handles: list[Any] = []
        if driver is not None:
            try:
                driver.nvmlInit()
                count = driver.nvmlDeviceGetCount()
                self._handles = [driver.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
            except driver.NVMLError:
                self._driver = None

    @staticmethod
    def open() -> GpuReader:
        try:
            import pynvml
        except ImportError:
            return GpuReader()
        return GpuReader(pynvml)

    def read(self) -> tuple[GpuState, ...]:
        """A GPU that does not answer is left out."""
        found = (self._state(index, handle) for index, handle in enumerate(self._handles))
        return tuple(state for state in found if state is not None)

    def _state(self, index: int, handle: Any) -> GpuState | None:
        driver = self._driver
        assert driver is not None, "without a driver there are no handles"
        name = self._ask(lambda: str(driver.nvmlDeviceGetName(handle)))
        memory = self._ask(lambda: driver.nvmlDeviceGetMemoryInfo(handle))
        if name is None or memory is None:
            return None
        power = self._ask(lambda: driver.nvmlDeviceGetPowerUsage(handle))
        return GpuState(
            index=index,
            name=name,
            used_bytes=int(memory.used),
            total_bytes=int(memory.total),
            clock_mhz=self._ask(lambda: int(driver.nvmlDeviceGetClockInfo(handle, driver.NVML_CLOCK_SM))),
            max_clock_mhz=self._ask(lambda: int(driver.nvmlDeviceGetMaxClockInfo(handle, driver.NVML_CLOCK_SM))),
            busy_pct=self._ask(lambda: int(driver.nvmlDeviceGetUtilizationRates(handle).gpu)),
            power_watts=None if power is None else power / 1000,
        )

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The driver's answer; None where it has none for this GPU."""
        assert self._driver is not None
        try:
            return question()
        except self._driver.NVMLError:
            return None


def is_local(address: ServerAddress) -> bool:
    """Whether a server runs on this machine, as far as its address tells."""
    return address.host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", socket.gethostname())
