"""How the client itself did: a client that is late, or has no CPU left, measures itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kvplan.load.client.record import RequestRecord

# Late in the mean by this share of the median TTFT, or by 10 ms and at least the lesser share of it: the latencies are
# the client's. 10 ms of a TTFT of seconds are not. The 99th percentiles are compared by the share alone.
MOST_DELAY_OF_TTFT: Final = 0.05
MOST_DELAY_SECONDS: Final = 0.010
LEAST_DELAY_OF_TTFT: Final = 0.01
# asyncio's timers wake up to a millisecond late; below this nothing is said.
LEAST_DELAY_SECONDS: Final = 0.002
# AIPerf warns of the same lag of its loop; beside the time between tokens it must count for something, too.
MOST_LAG_SECONDS: Final = 0.025
MOST_LAG_OF_TPOT: Final = 0.25
MOST_CPU_SHARE: Final = 0.90
# A ceiling closer than this to what was measured is no measure of a server.
LEAST_CEILING_RATIO: Final = 3.0
_LAG_INTERVAL_SECONDS: Final = 0.05
_LATE: Final = "requests were sent"


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """dispatch_delay_p99: how late requests were begun, in seconds. loop_lag_p99: how late the event loop woke, in
    seconds. cpu_share: of one core, of which a process uses one at most; that of the busiest one. reasons: why the
    client was the limit; empty if it was not. cpu_seconds: of all its processes."""

    dispatch_delay_p99: float
    loop_lag_p99: float
    cpu_share: float
    reasons: tuple[str, ...]
    num_processes: int = 1
    cpu_seconds: float = 0.0

    @property
    def is_bound(self) -> bool:
        return bool(self.reasons)


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process of the client over a run. lags: how late its event loop woke each time, in seconds."""

    lags: tuple[float, ...]
    cpu_seconds: float
    seconds: float

    @property
    def cpu_share(self) -> float:
        return self.cpu_seconds / self.seconds if self.seconds > 0 else 0.0


@dataclass(slots=True)
class HealthMeter:
    """Runs beside the load on the same event loop: use as an asynchronous context manager."""

    _lags: list[float] = field(default_factory=list)
    _cpu_seconds: float = 0.0
    _seconds: float = 0.0
    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> HealthMeter:
        self._seconds, self._cpu_seconds = time.perf_counter(), time.process_time()
        self._task = asyncio.ensure_future(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        self._seconds = time.perf_counter() - self._seconds
        self._cpu_seconds = time.process_time() - self._cpu_seconds

    async def _watch(self) -> None:
        while True:
            due = time.perf_counter() + _LAG_INTERVAL_SECONDS
            await asyncio.sleep(_LAG_INTERVAL_SECONDS)
            self._lags.append(max(0.0, time.perf_counter() - due))

    @property
    def sample(self) -> ProcessSample:
        """What was seen, once the load has ended."""
        return ProcessSample(tuple(self._lags), self._cpu_seconds, self._seconds)


def client_health(
    records: Sequence[RequestRecord], samples: Sequence[ProcessSample], *, is_open: bool = True
) -> ClientHealth:
    """Return how the client did over the records that were measured, in all its processes (at least one).

    is_open: latencies count from the schedule, so lateness is in them. In a closed loop they count from sending.
    """
    delays = [record.dispatch_delay for record in records]
    delay = _p99(delays)
    lag = _p99([lag for sample in samples for lag in sample.lags])
    share = max(sample.cpu_share for sample in samples)
    ttfts = [record.times[0] - record.started for record in records if record.is_served]
    tpots = [
        (record.times[-1] - record.times[0]) / ((record.num_output_tokens or 0) - 1)
        for record in records
        if record.is_served and (record.num_output_tokens or 0) > 1
    ]
    mean_delay = float(np.mean(delays)) if delays and is_open else 0.0
    reasons = bound_reasons(mean_delay, _median(ttfts), lag, _median(tpots), share)
    if is_open and not any(_LATE in reason for reason in reasons):
        reasons = (*_late_at_the_99th(delay, _p99(ttfts)), *reasons)
    cpu_seconds = sum(sample.cpu_seconds for sample in samples)
    return ClientHealth(delay, lag, share, reasons, len(samples), cpu_seconds)


def _late_at_the_99th(delay: float, ttft: float) -> tuple[str, ...]:
    """A few requests that were sent late change the 99th percentile, even where most were in time."""
    if not ttft or delay <= max(LEAST_DELAY_SECONDS, MOST_DELAY_OF_TTFT * ttft):
        return ()
    return (f"{_LATE} up to {1000 * delay:.3g} ms late (p99), {100 * delay / ttft:.0f} % of the p99 TTFT",)


def bound_reasons(
    delay: float, median_ttft: float | None, lag: float, median_tpot: float | None, cpu_share: float
) -> tuple[str, ...]:
    """Return why these make the client the limit, one phrase each. delay: how late requests were sent in the mean."""
    reasons = []
    late = f"{_LATE} {1000 * delay:.3g} ms late in the mean"
    if median_ttft is None:
        if delay > MOST_DELAY_SECONDS:
            reasons.append(late)
    elif _is_late(delay, median_ttft):
        reasons.append(f"{late}, {100 * delay / median_ttft:.0f} % of the median TTFT")
    if lag > max(MOST_LAG_SECONDS, MOST_LAG_OF_TPOT * (median_tpot or 0.0)):
        reasons.append(f"its event loop woke up to {1000 * lag:.3g} ms late (p99)")
    if cpu_share > MOST_CPU_SHARE:
        reasons.append(f"it used {100 * cpu_share:.0f} % of a core, which is all that a process can (--num-clients)")
    return tuple(reasons)


def _is_late(delay: float, median_ttft: float) -> bool:
    by_share = delay > max(LEAST_DELAY_SECONDS, MOST_DELAY_OF_TTFT * median_ttft)
    return by_share or delay > max(MOST_DELAY_SECONDS, LEAST_DELAY_OF_TTFT * median_ttft)


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if len(values) else None


def _p99(values: Sequence[float]) -> float:
    return float(np.percentile(values, 99)) if len(values) else 0.0
