"""One server, read now and then in a thread of its own: a slow server holds up nobody else."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from kvplan.errors import KvplanError
from kvplan.metrics.http import PersistentConnection, ServerAddress
from kvplan.metrics.limits import UNKNOWN_LIMITS, ServerLimits
from kvplan.metrics.reading import ServerReading, believable_names
from kvplan.metrics.source import MetricsSource
from kvplan.metrics.window import WindowFigures, difference

_LEAST_TIMEOUT_SECONDS: Final = 2.0
_OK: Final = 200


@dataclass(frozen=True, slots=True)
class ServerState:
    """What is known of a server at one moment.

    reading: the newest one, also of a server that is gone; None before the first. window: from the oldest reading
    within the window to the newest; None with fewer than two. models: the names and paths under which it serves.
    error: why the last attempt failed, None if it did not; gone_seconds: for how long.
    """

    url: str
    reading: ServerReading | None = None
    window: WindowFigures | None = None
    limits: ServerLimits = UNKNOWN_LIMITS
    models: tuple[str, ...] = ()
    error: str | None = None
    gone_seconds: float = 0.0

    @property
    def is_up(self) -> bool:
        return self.error is None and self.reading is not None


class ServerWatch:
    """Reads one server every ``interval_seconds`` from ``start`` to ``stop``; ``state`` may be asked at any time.

    UsageError if ``url`` is no address.
    """

    def __init__(self, url: str, *, interval_seconds: float, window_seconds: float, api_key: str | None = None) -> None:
        self.address = ServerAddress.parse(url)
        timeout = max(_LEAST_TIMEOUT_SECONDS, interval_seconds)
        self._source = MetricsSource(url, api_key, timeout_seconds=timeout)
        self._questions = PersistentConnection(self.address, api_key, timeout_seconds=timeout)
        self._interval_seconds = interval_seconds
        self._window_seconds = window_seconds
        self._readings: deque[ServerReading] = deque()
        self._limits = UNKNOWN_LIMITS
        self._models: tuple[str, ...] = ()
        self._error: KvplanError | None = None
        self._gone_since = 0.0
        self._knows_settings = False
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"top {self.address.url}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end; it is not waited for, since it may wait for a server."""
        self._stopped.set()

    def close(self) -> None:
        """Close the connections; another reading would open them again. Where the thread runs, it does so itself."""
        self._source.close()
        self._questions.close()

    def read_once(self) -> None:
        """One reading, or one failure that is remembered. Called by the thread, or instead of it."""
        try:
            reading = self._source.read()
        except KvplanError as error:
            self._note_failure(error)
            return
        if not self._knows_settings:
            self._ask_settings(reading)
        self._note(reading)

    @property
    def state(self) -> ServerState:
        with self._lock:
            newest = self._readings[-1] if self._readings else None
            window = difference(self._readings[0], self._readings[-1]) if len(self._readings) > 1 else None
            return ServerState(
                url=self.address.url,
                reading=newest,
                window=window,
                limits=self._limits,
                models=self._models,
                error=None if self._error is None else self._error.message,
                gone_seconds=0.0 if self._error is None else time.monotonic() - self._gone_since,
            )

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            self.read_once()
            self._stopped.wait(max(0.0, self._interval_seconds - (time.monotonic() - began)))
        self.close()

    def _note(self, reading: ServerReading) -> None:
        with self._lock:
            if self._readings and difference(self._readings[-1], reading).restarted:
                self._readings.clear()  # its counters began anew
            self._readings.append(reading)
            while len(self._readings) > 2 and reading.seconds - self._readings[1].seconds >= self._window_seconds:
                self._readings.popleft()
            self._error = None

    def _note_failure(self, error: KvplanError) -> None:
        with self._lock:
            if self._error is None:
                self._gone_since = time.monotonic()
            self._error = error
            self._knows_settings = False  # another server may come up in its place
            # A gap is no part of a window; the last reading stays, to show and to notice a restart by.
            while len(self._readings) > 1:
                self._readings.popleft()

    def _ask_settings(self, reading: ServerReading) -> None:
        """What it serves and with which limits, as far as it tells; a failure only costs these."""
        try:
            limits = self._source.limits(reading.engine)
            models = _served_models(self._questions)
        except KvplanError:
            return
        with self._lock:
            self._limits = limits
            self._models = believable_names((*models, *reading.model_names))
            self._knows_settings = True


def _served_models(connection: PersistentConnection) -> tuple[str, ...]:
    """``root`` (what was loaded) and ``id`` (its name) of each model at /v1/models."""
    answer = connection.get("/v1/models")
    document = answer.json() if answer.status == _OK else None
    cards = document.get("data") if isinstance(document, dict) else None
    listed = cards if isinstance(cards, list) else []
    return believable_names(card.get(key) for card in listed if isinstance(card, dict) for key in ("root", "id"))
