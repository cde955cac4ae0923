"""Several client processes as one: started together, their records put into one list."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any, Final, cast

from kvplan.errors import KvplanError
from kvplan.load.processes.messages import READY, read_message, write_message
from kvplan.load.sending import OnSent, Sending, Sent, SentSoFar

_COMMAND: Final = (sys.executable, "-m", "kvplan.load.processes")
# Between the last process's being ready and the schedule's zero, so that all of them have heard of it.
_HEAD_START_SECONDS: Final = 0.1
_END_SECONDS: Final = 10.0
_STOP_SECONDS: Final = 2.0
"""How long a process that was stopped by a signal may take to give its result."""
_POLL_SECONDS: Final = 0.2


def send_together(sending: Sending, num_clients: int, on_sent: OnSent) -> Sent:
    """Send a plan's requests from ``num_clients`` processes, or from as many as the plan can be dealt out to.

    They share one clock and begin at one moment. KvplanError for what a single client cannot do either, and where a
    process ends early. on_sent: called in threads, with the sums over all processes.
    """
    shares = sending.plan.shares(num_clients)
    tally = _SentTally(len(shares), on_sent)
    with ExitStack() as stack:
        team = [
            stack.enter_context(ClientProcess(replace(sending, plan=share), tally, number))
            for number, share in enumerate(shares)
        ]
        for member in team:
            member.expect_ready()
        stack.enter_context(_stopped_by_signals(team))
        start = time.perf_counter() + _HEAD_START_SECONDS
        for member in team:
            member.begin(start)
        return _together([member.result() for member in team])


def _together(parts: Sequence[Sent]) -> Sent:
    records = sorted((record for part in parts for record in part.records), key=lambda record: record.index)
    samples = tuple(sample for part in parts for sample in part.samples)
    return Sent(tuple(records), samples, any(part.interrupted for part in parts))


class _SentTally:
    """What all processes have sent so far."""

    def __init__(self, num_processes: int, on_sent: OnSent) -> None:
        self._parts = [SentSoFar(0.0, 0, 0, 0)] * num_processes
        self._on_sent = on_sent
        self._lock = threading.Lock()

    def take(self, number: int, sent: SentSoFar) -> None:
        with self._lock:
            self._parts[number] = sent
            parts = self._parts
            self._on_sent(
                SentSoFar(
                    seconds=max(part.seconds for part in parts),
                    num_sent=sum(part.num_sent for part in parts),
                    num_ended=sum(part.num_ended for part in parts),
                    num_tokens=sum(part.num_tokens for part in parts),
                )
            )


class ClientProcess:
    """One process. A context manager: leaving it ends the process, whatever it does."""

    def __init__(self, sending: Sending, tally: _SentTally, number: int) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        # In a session of its own, so that Ctrl-C reaches the command alone, which then stops all of them.
        self._process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = cast(Any, self._process.stdin), cast(Any, self._process.stdout)
        self._tally, self._number = tally, number
        self._message: Any = None
        self._stopped_at: float | None = None
        self._reader = threading.Thread(target=self._read, name=f"kvplan-client-{number}", daemon=True)
        self._write(sending)

    def __enter__(self) -> ClientProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        try:
            self._process.wait(_END_SECONDS if self._message is not None else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._reader.is_alive():
            self._reader.join()
        self._from.close()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def expect_ready(self) -> None:
        """Wait until it could begin. KvplanError if it cannot."""
        message = self._next()
        if message != READY:
            raise message

    def begin(self, start: float) -> None:
        self._write(start)
        self._reader.start()

    def result(self) -> Sent:
        """Wait for the end. KvplanError if there is no result."""
        while self._reader.is_alive():
            self._reader.join(_POLL_SECONDS)
            if self._stopped_at is not None and time.monotonic() - self._stopped_at > _STOP_SECONDS:
                self._process.kill()
        if isinstance(self._message, KvplanError):
            raise self._message
        assert isinstance(self._message, Sent)
        return self._message

    def stop(self) -> None:
        """It sends nothing more, breaks off what is under way, and gives its result soon or never."""
        self._stopped_at = self._stopped_at or time.monotonic()
        with contextlib.suppress(OSError):
            self._to.close()

    def _read(self) -> None:
        while isinstance(message := self._next(), SentSoFar):
            self._tally.take(self._number, message)
        self._message = message

    def _next(self) -> Any:
        try:
            return read_message(self._from)
        except EOFError:
            return KvplanError(f"A client process ended with exit code {self._exit_code()}.")

    def _exit_code(self) -> int:
        """Return the exit code of a process that says nothing any more."""
        try:
            return self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _write(self, message: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended; reading says how
            write_message(self._to, message)


@contextmanager
def _stopped_by_signals(team: Sequence[ClientProcess]) -> Iterator[None]:
    """While it is open, SIGINT and SIGTERM stop the processes instead of the command."""

    def stop(number: int, frame: FrameType | None) -> None:
        for member in team:
            member.stop()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
