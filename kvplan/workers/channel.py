"""The worker's end of the conversation. It is opened before torch and the engine are imported, and needs neither."""

from __future__ import annotations

import gc
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, BinaryIO, Final


class WorkerChannel:
    """Messages from and to the parent. The process ends when the parent closes its stdin, on purpose or by dying."""

    def __init__(self, output: BinaryIO) -> None:
        self._output = output
        self._received: queue.Queue[dict[str, Any]] = queue.Queue()

    @staticmethod
    def open() -> WorkerChannel:
        """Keep the stdout pipe for messages, and let file descriptor 1 point at stderr, also for native code.

        A thread reads stdin from now on, so that its end also ends a process that is busy.
        """
        sys.excepthook = _exit_at_once
        channel = WorkerChannel(os.fdopen(os.dup(1), "wb", buffering=0))
        os.dup2(2, 1)
        threading.Thread(target=channel._read, daemon=True).start()
        return channel

    def send(self, message: Mapping[str, object]) -> None:
        self._output.write(encode(message))

    def receive(self) -> dict[str, Any]:
        """The parent's next message; waits for it."""
        return self._received.get()

    def wait_for_the_end(self) -> None:
        """Until the parent closes stdin, which ends the process."""
        while True:
            self.receive()

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            message = decode(line)
            if message["type"] == LOG:
                _log_to(message["path"])
            else:
                self._received.put(message)
        os._exit(0)


def _log_to(path: str) -> None:
    """Append to ``path`` what stderr has so far, a file without a name, and all that follows.

    Another thread may be in the middle of a write to the old file: what it wrote is copied a little later.
    """
    before = os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    copied = 0

    def copy() -> None:
        nonlocal copied
        written = os.pread(before, os.fstat(before).st_size - copied, copied)
        copied += os.write(log, written)

    copy()
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    for pause_seconds in (0.0, 0.05, 0.2):
        time.sleep(pause_seconds)
        copy()
    os.close(before)
    os.close(log)


def _exit_at_once(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A normal exit would make Python abort because of the reading thread, and hide the error's line in the log."""
    sys.__excepthook__(kind, error, trace)
    sys.stderr.flush()
    os._exit(1)


@contextmanager
def quick_imports() -> Iterator[None]:
    """Speed up a block of imports: importing torch sets off a thousand garbage collections, which find nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


LOG: Final = "log"
"""The type of the one message that no command reads: stderr goes to its ``path`` from now on."""


def encode(message: Mapping[str, object]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The message in a line. ValueError if it is none."""
    message = json.loads(line)
    if not isinstance(message, dict) or "type" not in message:
        raise ValueError(f"not a message: {line!r}")
    return message
