"""What the device can reach at most: measured here for this machine's CPU, from the data sheet for a known GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np

from kvplan.calibrate.trials import DeviceIdentity
from kvplan.catalog.devices.gpus import find_gpu
from kvplan.errors import UsageError
from kvplan.estimate.speed.steps.step_time import Speed
from kvplan.machine.host import cpu_name, usable_cores
from kvplan.sweeps.forecast.step_cost import guess_speed

_LABELS: Final = {
    "step_seconds": "overhead per step",
    "layer_seconds": "overhead per step and layer",
    "sequence_seconds": "overhead per step and sequence",
    "bandwidth": "weights and activations",
    "flops": "matrix products",
    "kv_bandwidth": "K and V",
    "attention_flops": "attention",
    "sharpness": "overlap exponent",
    "row_step": "rows of a product, multiple of",
}
# Far larger than any shared cache.
_READ_BYTES: Final = 256 * 1024**2
_GEMM_SIZE: Final = 640
_REPEATS: Final = 40
# Shares of a peak outside of which a coefficient is implausible.
_PLAUSIBLE: Final = (0.02, 1.25)


@dataclass(frozen=True, slots=True)
class Peaks:
    """Bytes read per second, dense operations per second, and the source of both."""

    bandwidth: float
    flops: float
    source: str


@dataclass(frozen=True, slots=True)
class PeakShare:
    """A coefficient and the peak it belongs to; plausible: between 2 and 125 % of the peak."""

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
    """None for a CPU other than this machine's and for a GPU that the catalog does not know."""
    if device.kind == "cpu":
        is_here = device.name == cpu_name() and device.num_cores == usable_cores()
        return _measure_cpu() if is_here else None
    try:
        gpu = find_gpu(device.name)
    except UsageError:
        return None
    return Peaks(gpu.memory_bandwidth_bytes_per_second, gpu.flops(device.dtype), f"data sheet of {gpu.id}")


def _measure_cpu() -> Peaks:
    """Reading 256 MiB, and a product of two float32 matrices of 640 x 640: the best of forty runs each."""
    threads = usable_cores()
    content = np.ones(_READ_BYTES // 4, dtype=np.float32)
    matrix = np.full((_GEMM_SIZE, _GEMM_SIZE), 0.5, dtype=np.float32)
    product = np.empty_like(matrix)
    parts = np.array_split(content, threads)
    # The maximum costs less arithmetic than a sum, and numpy releases the GIL for it.
    with ThreadPoolExecutor(threads) as pool:
        read_seconds = _best(lambda: list(pool.map(np.max, parts)))
    gemm_seconds = _best(lambda: np.matmul(matrix, matrix, out=product))
    source = "measured now: reads on all cores, a numpy matrix product"
    return Peaks(_READ_BYTES / read_seconds, 2 * _GEMM_SIZE**3 / gemm_seconds, source)


def _best(run: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def expected_speed(device: DeviceIdentity, peaks: Peaks | None) -> Speed:
    """What is expected before looking at any row: the usual shares of the peaks, where these are known."""
    guess = guess_speed(device.kind, None, device.dtype)
    if peaks is None:
        return guess
    if device.kind == "cpu":
        # Bandwidth stays a guess: a short measurement says little on a machine that others use too.
        return replace(guess, flops=0.7 * peaks.flops, attention_flops=0.35 * peaks.flops)
    return replace(
        guess,
        bandwidth=0.7 * peaks.bandwidth,
        kv_bandwidth=0.7 * peaks.bandwidth,
        flops=0.5 * peaks.flops,
        attention_flops=0.2 * peaks.flops,
    )


def shares_of_peaks(speed: Speed, peaks: Peaks) -> tuple[PeakShare, ...]:
    """The coefficients that have a peak."""
    return (
        PeakShare("bandwidth", speed.bandwidth, peaks.bandwidth),
        PeakShare("kv_bandwidth", speed.kv_bandwidth, peaks.bandwidth),
        PeakShare("flops", speed.flops, peaks.flops),
        PeakShare("attention_flops", speed.attention_flops, peaks.flops),
    )


@dataclass(frozen=True, slots=True)
class ReadableCoefficient:
    """One coefficient: ``value`` is in ``unit``; share_of_peak is None for one that has no peak."""

    label: str
    value: str
    unit: str
    share_of_peak: PeakShare | None


def readable_coefficients(speed: Speed, shares: Sequence[PeakShare]) -> list[ReadableCoefficient]:
    """All coefficients, in the order of ``Speed``. ``shares`` as ``shares_of_peaks`` returns them."""
    by_name = {share.name: share for share in shares}
    return [
        ReadableCoefficient(_LABELS[name], *_value_and_unit(name, value), by_name.get(name))
        for name, value in asdict(speed).items()
    ]


def _value_and_unit(name: str, value: float) -> tuple[str, str]:
    if name.endswith("seconds"):
        return f"{1e6 * value:,.1f}", "us"
    if name.endswith("bandwidth"):
        return f"{value / 1e9:,.2f}", "GB/s"
    if name.endswith("flops"):
        return f"{value / 1e9:,.1f}", "GFLOP/s"
    if name == "row_step":
        return f"{value:g}", "tokens"
    return f"{value:g}", "no overlap" if value == 1 else "memory and compute overlap"
