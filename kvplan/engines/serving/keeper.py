"""Runs a server and ends it, with every process that it started, when its own stdin closes: on purpose or by a death.

    python -m kvplan.engines.serving.keeper < one line of JSON: {"argv", "environment", "log", "patience_seconds"}

It says ``{"pid"}`` once the server is started and ``{"exit_code"}`` when that has ended, one JSON line each. Processes
that a dying server leaves behind become this one's children (PR_SET_CHILD_SUBREAPER), whatever session they made for
themselves, so none of them escapes. Standard library only: there is one for each server.
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
from pathlib import Path
from typing import Any, Final

_SET_CHILD_SUBREAPER: Final = 36
_POLL_SECONDS: Final = 0.05
_KILL_SECONDS: Final = 20.0


def main() -> int:
    order = json.loads(sys.stdin.readline())
    _adopt_orphans()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with open(order["log"], "ab") as log:
        try:
            server = _start(order, log)
        except OSError as error:
            say({"error": f"{order['argv'][0]}: {error.strerror or error}"})
            return 1
    say({"pid": server.pid})
    _wait(server)
    if server.poll() is None:
        _end_politely(server, order["patience_seconds"])
    kill_descendants()
    say({"exit_code": server.poll()})
    return 0


def _start(order: dict[str, Any], log: Any) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in order["environment"].items() if value is not None}
    return subprocess.Popen(
        order["argv"],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
        preexec_fn=_default_signals,
    )


def _default_signals() -> None:
    """Ignored signals would be inherited."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _wait(server: subprocess.Popen[bytes]) -> None:
    """Until the server ends or the other end of stdin closes."""
    while server.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], _POLL_SECONDS)
        if readable and not os.read(sys.stdin.fileno(), 4096):
            return


def _end_politely(server: subprocess.Popen[bytes], patience_seconds: float) -> None:
    server.terminate()
    try:
        server.wait(patience_seconds)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


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


def _adopt_orphans() -> None:
    with contextlib.suppress(OSError, AttributeError):  # Linux alone has it
        ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def say(message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
