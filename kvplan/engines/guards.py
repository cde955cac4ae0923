"""What holds while a server is loaded: this process's signals, and the time that it may take."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

from kvplan.engines.server import EngineServer


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
