"""Reads the server's metrics while a load runs: from a thread of its own, over one connection of its own."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from kvplan.errors import KvplanError
from kvplan.metrics.limits import UNKNOWN_LIMITS, ServerLimits
from kvplan.metrics.reading import ServerReading
from kvplan.metrics.source import MetricsSource
from kvplan.metrics.window import WindowFigures, difference

INTERVAL_SECONDS: Final = 0.25
FEWEST_READINGS: Final = 4
"""Gauges of fewer say little of a run: the first may be of the moment before the server began."""
_MOST_FAILURES: Final = 4
_URGENT_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class ServerView:
    """The server during a run, from ``start`` to ``end``. readings: in order of time, the first before the run and the
    last after it.

    missing: why there are none, for a server that has no metrics or lost them meanwhile.
    """

    readings: tuple[ServerReading, ...] = ()
    limits: ServerLimits = UNKNOWN_LIMITS
    missing: str | None = None
    start: float = -math.inf
    end: float = math.inf

    def of_run(self, start: float, end: float) -> ServerView:
        """The readings from the last one before ``start`` on."""
        before = [reading for reading in self.readings if reading.seconds <= start][-1:]
        after = [reading for reading in self.readings if reading.seconds > start]
        return ServerView((*before, *after), self.limits, self.missing, start, end)

    @property
    def within(self) -> tuple[ServerReading, ...]:
        """The readings whose gauges tell of the run; none of one too short for a few."""
        found = tuple(reading for reading in self.readings if self.start < reading.seconds <= self.end)
        return found if len(found) >= FEWEST_READINGS else ()

    @property
    def window(self) -> WindowFigures | None:
        """What happened between the first and the last reading; None with fewer than two."""
        return difference(self.readings[0], self.readings[-1]) if len(self.readings) > 1 else None


@dataclass(slots=True)
class ServerMonitor:
    """``start``, then ``view`` once the load has ended. One that cannot read leaves a sentence instead of readings.

    on_reading: called in the monitor's thread with every reading.
    """

    url: str
    api_key: str | None = None
    on_reading: Callable[[ServerReading], None] = lambda reading: None
    _readings: list[ServerReading] = field(default_factory=list)
    _limits: ServerLimits = UNKNOWN_LIMITS
    _missing: str | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Takes the first reading before it returns."""
        source = MetricsSource(self.url, self.api_key, timeout_seconds=5.0)
        try:
            first = source.read()
        except KvplanError as error:
            self._missing = error.message
            source.close()
            return
        with suppress(KvplanError):  # vLLM's page of settings can take longer than a reading may
            self._limits = source.limits(first.engine)
        self._keep(first)
        self._thread = threading.Thread(target=self._run, args=(source,), name="kvplan-metrics", daemon=True)
        self._thread.start()

    @property
    def last_reading(self) -> ServerReading | None:
        """The newest one; None before the first and for a server that tells nothing."""
        return self._readings[-1] if self._readings else None

    def view(self, *, is_urgent: bool = False) -> ServerView:
        """Takes the last reading and ends. is_urgent: without the last reading, where the server is slow to give it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_URGENT_SECONDS if is_urgent else None)
        return ServerView(tuple(self._readings), self._limits, self._missing)

    def _run(self, source: MetricsSource) -> None:
        num_failures = 0
        with source:
            while num_failures < _MOST_FAILURES:
                is_last = self._stop.wait(INTERVAL_SECONDS)
                try:
                    self._keep(source.read())
                    num_failures = 0
                except KvplanError as error:
                    num_failures += 1
                    self._missing = error.message if num_failures == _MOST_FAILURES else None
                if is_last:
                    return

    def _keep(self, reading: ServerReading) -> None:
        self._readings.append(reading)
        self.on_reading(reading)


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Highest values of the readings within the run, and what was counted from before to after it. None: not told."""

    kv_usage_max: float | None
    max_running: float | None
    max_waiting: float | None
    num_preemptions: float | None
    prefix_hit_rate: float | None
    generation_tokens: float | None


def engine_figures(server: ServerView) -> dict[str, EngineFigures]:
    """Return figures by the engine's number; empty for a server of one engine, or one that told nothing."""
    names = server.readings[-1].engines if server.readings else {}
    return {name: _figures(_of_engine(name, server.readings), _of_engine(name, server.within)) for name in names}


def _of_engine(name: str, readings: Sequence[ServerReading]) -> list[ServerReading]:
    return [each.engines[name] for each in readings if name in each.engines]


def _figures(readings: Sequence[ServerReading], within: Sequence[ServerReading]) -> EngineFigures:
    window = difference(readings[0], readings[-1])
    return EngineFigures(
        kv_usage_max=max((each.kv_cache_usage for each in within if each.kv_cache_usage is not None), default=None),
        max_running=max((each.num_running for each in within if each.num_running is not None), default=None),
        max_waiting=max((each.num_waiting for each in within if each.num_waiting is not None), default=None),
        num_preemptions=window.num_preemptions,
        prefix_hit_rate=window.prefix_hit_rate,
        generation_tokens=window.generation_tokens,
    )
