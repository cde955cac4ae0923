"""What the device could reach at most: measured here for this machine's CPU, from the data sheet for a known GPU."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kvplan.calibrate.trials import DeviceIdentity
from kvplan.catalog.gpus import find_gpu
from kvplan.errors import UsageError
from kvplan.estimate.speed.step_time import Speed
from kvplan.machine.host import cpu_name
from kvplan.sweeps.forecast.step_cost import guess_speed

# Far beyond any cache that the cores share.
_READ_BYTES: Final = 256 * 1024**2
_GEMM_SIZE: Final = 640
_REPEATS: Final = 40
# Shares of a peak outside which a coefficient is not believed.
_PLAUSIBLE: Final = (0.02, 1.25)


@dataclass(frozen=True, slots=True)
class Peaks:
    """Bytes per second read, dense operations per second, and where they are from."""

    bandwidth: float
    flops: float
    source: str


@dataclass(frozen=True, slots=True)
class Reached:
    """A coefficient beside the peak it belongs to; plausible: between 2 and 125 % of it."""

    name: str
    value: float
    peak: float

    @property
    def share(self) -> float:
        return self.value / self.peak

    @property
    def plausible(self) -> bool:
        return _PLAUSIBLE[0] <= self.share <= _PLAUSIBLE[1]


def find_peaks(device: DeviceIdentity) -> Peaks | None:
    """None for a CPU that is not this machine's, and for a GPU that the catalog does not know."""
    if device.kind == "cpu":
        is_here = device.name == cpu_name() and device.num_cores == os.cpu_count()
        return _measure_cpu() if is_here else None
    try:
        gpu = find_gpu(device.name)
    except UsageError:
        return None
    return Peaks(gpu.memory_bandwidth_bytes_per_second, gpu.flops(device.dtype), f"data sheet of {gpu.id}")


def _measure_cpu() -> Peaks:
    """Reading 256 MiB and a product of two float32 matrices of 640 x 640, the best of forty each."""
    threads = os.cpu_count() or 1
    source = np.ones(_READ_BYTES // 4, dtype=np.float32)
    matrix = np.full((_GEMM_SIZE, _GEMM_SIZE), 0.5, dtype=np.float32)
    product = np.empty_like(matrix)
    parts = np.array_split(source, threads)
    # The maximum, because it costs less arithmetic than a sum; it lets other threads of Python run.
    with ThreadPoolExecutor(threads) as pool:
        read_seconds = _best(lambda: list(pool.map(np.max, parts)))
    gemm_seconds = _best(lambda: np.matmul(matrix, matrix, out=product))
    said = "reading on all cores and a matrix product by numpy, just now"
    return Peaks(_READ_BYTES / read_seconds, 2 * _GEMM_SIZE**3 / gemm_seconds, said)


def _best(run: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def expected_speed(device: DeviceIdentity, peaks: Peaks | None) -> Speed:
    """What is expected before a row is looked at: usual shares of the peaks where these are known."""
    guess = guess_speed(device.kind, None, device.dtype)
    if peaks is None:
        return guess
    if device.kind == "cpu":
        # Of the memory the guess stands: a moment's reading says little where others use the machine.
        return replace(guess, flops=0.7 * peaks.flops, attention_flops=0.35 * peaks.flops)
    return replace(
        guess,
        bandwidth=0.7 * peaks.bandwidth,
        kv_bandwidth=0.7 * peaks.bandwidth,
        flops=0.5 * peaks.flops,
        attention_flops=0.2 * peaks.flops,
    )


def shares_of_peaks(speed: Speed, peaks: Peaks) -> tuple[Reached, ...]:
    """The coefficients that have a peak to be held against."""
    return (
        Reached("bandwidth", speed.bandwidth, peaks.bandwidth),
        Reached("kv_bandwidth", speed.kv_bandwidth, peaks.bandwidth),
        Reached("flops", speed.flops, peaks.flops),
        Reached("attention_flops", speed.attention_flops, peaks.flops),
    )
