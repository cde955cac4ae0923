"""Runs a server and ends it, with every process that it started, when its own stdin closes: on purpose or by a death.

    python -m kvplan.engines.serving.keeper < one line of JSON: {"argv", "environment", "log", "patience_seconds"}

It says ``{"keeper_pid"}``, ``{"pid"}`` once the server is started and ``{"exit_code"}`` when that has ended, one JSON
line each. Processes that a dying server leaves behind become this one's children (PR_SET_CHILD_SUBREAPER), whatever
session they made for themselves, so none of them escapes. Standard library only: there is one for each server, and one
that is forked (preload/) runs in the engine's Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

_SET_CHILD_SUBREAPER: Final = 36
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_POLL_SECONDS: Final = 0.05
_KILL_SECONDS: Final = 20.0


class Server(Protocol):
    """A child of this process."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Its exit code, as of subprocess; None while it runs."""


def main() -> int:
    order = json.loads(sys.stdin.readline())
    return keep(order, lambda log: _start(order, log))


def keep(order: dict[str, Any], start: Callable[[Any], Server | None]) -> int:
    """Start the server with the log's file, and stay until nothing of it is left. None: it cannot be started."""
    say({"keeper_pid": os.getpid()})
    with contextlib.suppress(OSError, AttributeError):  # Linux alone has it
        ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    with open(order["log"], "ab") as log:
        server = start(log)
    if server is None:
        return 1
    say({"pid": server.pid})
    _wait(server)
    if server.poll() is None:
        _end_politely(server, order["patience_seconds"])
    kill_descendants()
    say({"exit_code": server.poll()})
    return 0


def _start(order: dict[str, Any], log: Any) -> subprocess.Popen[bytes] | None:
    environment = {name: value for name, value in order["environment"].items() if value is not None}
    try:
        return subprocess.Popen(
            order["argv"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            preexec_fn=default_signals,
        )
    except OSError as error:
        say({"error": f"{order['argv'][0]}: {error.strerror or error}"})
        return None


def default_signals() -> None:
    """Ignored signals would be inherited."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _wait(server: Server) -> None:
    """Until the server ends or the other end of stdin closes."""
    while server.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], _POLL_SECONDS)
        if readable and not os.read(sys.stdin.fileno(), 4096):
            return


def _end_politely(server: Server, patience_seconds: float) -> None:
    os.kill(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + patience_seconds
    while server.poll() is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    if server.poll() is None:
        os.kill(server.pid, signal.SIGKILL)
    while server.poll() is None:
        time.sleep(_POLL_SECONDS)


def kill_descendants() -> None:
    """End every process below this one, and wait until none is left."""
    deadline = time.monotonic() + _KILL_SECONDS
    while (below := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        time.sleep(_POLL_SECONDS)


def descendants(pid: int) -> list[int]:
    """Children of a process and theirs; those that have ended and wait to be read do not count."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name of the command, in parentheses, may hold anything.
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            children.setdefault(int(parent), []).append(int(entry.parent.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def say(message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
