"""The parent's end of a worker: start it, talk to it with a deadline, end it, and know how it died."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final

from kvplan.workers.channel import LOG, decode, encode

_READ_BYTES: Final = 1 << 16


class WorkerDied(Exception):
    """The process ended without a result. The message is one sentence; signal_number: the signal that ended it."""

    def __init__(self, message: str, signal_number: int | None = None) -> None:
        super().__init__(message)
        self.signal_number = signal_number


class WorkerTimeout(Exception):
    """The process did not answer in time and was killed. The message is one sentence."""


class WorkerProcess:
    """One worker process. It is not restarted: after WorkerDied or WorkerTimeout make a new one.

    log_path: a file that its stderr is appended to; None for a nameless one, until ``log_to``.
    """

    def __init__(self, command: Sequence[str], log_path: Path | None = None) -> None:
        self._log: IO[bytes] = TemporaryFile() if log_path is None else log_path.open("ab")  # noqa: SIM115  # until it ends
        self._log_path, self._log_start = log_path, self._log.tell()
        # A session of its own: Ctrl-C in the terminal reaches the parent alone, which then decides.
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            env=same_imports(),
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input = self._process.stdin
        self._output = self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)
        self._buffer = b""
        self._nameless = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def log_to(self, path: Path) -> None:
        """Append its stderr to ``path``, including what it has written already. WorkerDied if it has ended."""
        path.touch()
        self._log_path, self._log_start = path, path.stat().st_size
        self.send({"type": LOG, "path": str(path.resolve())})

    def send(self, message: Mapping[str, object]) -> None:
        """WorkerDied if nobody reads it any more."""
        try:
            self._input.write(encode(message))
            self._input.flush()
        except BrokenPipeError:
            raise self._death() from None

    def receive(self, deadline: float | None = None, late_sentence: str = "") -> dict[str, Any]:
        """The next message. deadline: in seconds of time.monotonic(), None to wait for as long as the process lives.

        WorkerDied if the process ends first, WorkerTimeout with ``late_sentence`` if the deadline passes first.
        """
        while b"\n" not in self._buffer:
            remaining = None if deadline is None else deadline - time.monotonic()
            if (remaining is not None and remaining <= 0) or not self._selector.select(remaining):
                self.kill()
                raise WorkerTimeout(late_sentence)
            chunk = self._output.read(_READ_BYTES)
            if chunk == b"":
                raise self._death()
            self._buffer += chunk or b""
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            return decode(line)
        except ValueError:
            self.kill()
            raise WorkerDied("The worker sent an invalid message.") from None

    def kill(self) -> None:
        """End the process at once, and all that it started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._close()

    def stop(self, patience_seconds: float = 3.0) -> None:
        """Close its stdin, which ends it; kill it if that does not."""
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_seconds)
        self.kill()

    def _close(self) -> None:
        self._process.wait()
        if not self._log.closed and self._log.readable():
            self._log.seek(0)
            self._nameless = self._log.read()
        self._selector.close()
        for stream in (self._input, self._output, self._log):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def _death(self) -> WorkerDied:
        """Says signal or exit code, and the last line of the log."""
        try:
            code = self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            code = None
        self.kill()
        killed = code is not None and code < 0
        ending = f"was ended by {_signal_name(-(code or 0))}" if killed else f"ended with exit code {code}"
        last_line = self._last_log_line()
        detail = f": {last_line}" if last_line else ""
        return WorkerDied(f"The worker {ending}{detail}".rstrip(".") + ".", -(code or 0) if killed else None)

    def _last_log_line(self) -> str:
        # What it wrote to its log; to the nameless one if it ended before it turned to the path of ``log_to``.
        named = b"" if self._log_path is None else self._log_path.read_bytes()[self._log_start :]
        text = (named or self._nameless).decode("utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def same_imports() -> dict[str, str]:
    """This process's environment with its import path, so that another finds the same kvplan and the same engine."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
