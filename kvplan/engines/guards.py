"""What holds while a server is loaded: this process's signals, the time that it may take, and how it is shown."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

from kvplan.engines.server import EngineServer
from kvplan.load.run import LoadProgress, OnProgress
from kvplan.sweeps.hosts import OnEvent


@contextlib.contextmanager
def signals_kept() -> Iterator[None]:
    """A load's event loop takes SIGINT and SIGTERM, and leaves them to their defaults."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in kept.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def ended_after(server: EngineServer, seconds: float) -> Iterator[threading.Event]:
    """Ends the server if the block takes longer; the event tells whether it did."""
    overdue = threading.Event()

    def end() -> None:
        overdue.set()
        server.stop()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield overdue
    finally:
        timer.cancel()


def progress_to(on_event: OnEvent, num_tokens: int) -> OnProgress:
    """A load's progress as a sweep shows it. num_tokens: that all requests will have."""

    def report(progress: LoadProgress) -> None:
        reading, sent = progress.reading, progress.sent
        on_event(
            {
                "type": "progress",
                "output_tokens_per_second": sent.num_tokens / max(sent.seconds, 1e-9),
                "kv_usage": (reading.kv_cache_usage if reading else None) or 0.0,
                "num_running": int((reading.num_running if reading else None) or 0),
                "num_waiting": int((reading.num_waiting if reading else None) or 0),
                "share": sent.num_tokens / max(num_tokens, 1),
                "memory_share": None,
            }
        )

    return report
