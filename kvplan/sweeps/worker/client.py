"""The parent's end of a worker: start it, give it a trial, listen with a time-out, and know how it died."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from kvplan.sweeps.worker.protocol import Event, Hello, Message, TrialOrder, TrialResult, decode, encode

WORKER_COMMAND: Final = (sys.executable, "-m", "kvplan.sweeps.worker.process")
_READ_BYTES: Final = 1 << 16

OnEvent = Callable[[Event], None]


class WorkerDied(Exception):
    """The process ended without a result. The message is one sentence for the row; signal_number says what ended it."""

    def __init__(self, message: str, signal_number: int | None = None) -> None:
        super().__init__(message)
        self.signal_number = signal_number


class WorkerTimeout(Exception):
    """The process said nothing final in time and was killed. The message is one sentence for the row."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Longest time for each stage of a trial, in seconds. silence: longest time without progress while serving."""

    starting: float = 180.0
    loading: float = 300.0
    setup: float = 120.0
    warmup: float = 120.0
    serving: float = 120.0
    silence: float = 60.0


class StageDeadline:
    """When the patience with a trial ends: each stage has its limit, and serving must go on all the time."""

    def __init__(self, limits: TimeLimits) -> None:
        self._limits = limits
        self._stage_ends = 0.0
        self._start("loading")

    def hear(self, message: Event) -> None:
        """A sign of life: a new stage, or progress within one."""
        if message["type"] == "stage":
            self._start(message["stage"])
        self._heard = time.monotonic()

    @property
    def at(self) -> float:
        """In seconds of time.monotonic()."""
        if self._stage != "serving":
            return self._stage_ends
        return min(self._stage_ends, self._heard + self._limits.silence)

    @property
    def sentence(self) -> str:
        if self.at < self._stage_ends:
            return f"The trial was ended: no progress for {self._limits.silence:.0f} s."
        return f"The trial was ended: {self._stage} took over {getattr(self._limits, self._stage):.0f} s."

    def _start(self, stage: str) -> None:
        self._stage = stage
        self._heard = time.monotonic()
        self._stage_ends = self._heard + getattr(self._limits, stage)


class Worker:
    """One worker process. Not restarted by itself: after WorkerDied or WorkerTimeout make a new one."""

    def __init__(self, log_path: Path, command: Sequence[str] = WORKER_COMMAND) -> None:
        self._log_path = log_path
        self._log = log_path.open("ab")
        self._log_start = self._log.tell()
        # A session of its own: Ctrl-C in the terminal reaches the parent alone, which then decides.
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            env=_environment(),
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input = self._process.stdin
        self._output = self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)
        self._buffer = b""
        self.hello: Hello | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self, limits: TimeLimits) -> Hello:
        """Until the process has imported its engine. WorkerDied or WorkerTimeout otherwise."""
        deadline = time.monotonic() + limits.starting
        while self.hello is None:
            message = self._next_message(deadline, f"The worker did not start within {limits.starting:.0f} s.")
            if message["type"] == "hello":
                self.hello = message
        return self.hello

    def run_trial(self, order: TrialOrder, limits: TimeLimits, on_event: OnEvent) -> TrialResult:
        """The result of one trial. Stages move the deadline; all events are passed on.

        WorkerDied when the process ends before its result, WorkerTimeout when a stage takes longer than its limit.
        """
        self._send(order.as_json())
        deadline = StageDeadline(limits)
        while True:
            message = self._next_message(deadline.at, deadline.sentence)
            if message["type"] == "result":
                return TrialResult.from_message(message)
            if message["type"] != "hello":
                deadline.hear(message)
                on_event(message)

    def kill(self) -> None:
        """End the process at once, and all that it started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._close()

    def stop(self, patience_seconds: float = 3.0) -> None:
        """Close its stdin, which ends it; kill it when it does not listen."""
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_seconds)
        self.kill()

    def _close(self) -> None:
        self._process.wait()
        self._selector.close()
        for stream in (self._input, self._output, self._log):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def _send(self, message: Mapping[str, object]) -> None:
        try:
            self._input.write(encode(message))
            self._input.flush()
        except BrokenPipeError:
            raise self._death() from None

    def _next_message(self, deadline: float, late_sentence: str) -> Message:
        while b"\n" not in self._buffer:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not self._selector.select(remaining):
                self.kill()
                raise WorkerTimeout(late_sentence)
            chunk = self._output.read(_READ_BYTES)
            if chunk == b"":
                raise self._death()
            self._buffer += chunk or b""
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            return cast(Message, decode(line))
        except ValueError:
            self.kill()
            raise WorkerDied("The worker sent an invalid message.") from None

    def _death(self) -> WorkerDied:
        """The sentence of a process that has closed its end: signal or exit code, and the last line of its log."""
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
        text = self._log_path.read_bytes()[self._log_start :].decode("utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _environment() -> dict[str, str]:
    """The parent's environment, with its import path: the worker must find the same kvplan and the same engine."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return environment
