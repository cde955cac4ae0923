"""Plays that do not depend on each other, on several cores: in processes that are forked off and end with their share.

``multiprocessing.Pool`` forks beside threads of its own, and its end waits for ever where a child that was forked in a
process with other threads, as a notebook's, does not take the signal. Here a child runs plays, writes what they return
and is gone.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

Result = TypeVar("Result")
_MOST_PROCESSES: Final = 8
_TICKET_BYTES: Final = 4
_MOST_TICKETS: Final = 1000
"""Written to a pipe at once: what fits there."""


class _Child(NamedTuple):
    """pid: of the process; answers: the end of the pipe that it writes to."""

    pid: int
    answers: int


def num_cores() -> int:
    """Cores that this process may use for plays; 1 where processes cannot be forked off safely."""
    if not sys.platform.startswith("linux"):
        return 1
    return min(len(os.sched_getaffinity(0)), _MOST_PROCESSES)


def side_by_side(count: int, job: Callable[[int], Result]) -> list[Result]:
    """Return what ``job`` returns for 0 to ``count`` - 1. Ctrl-C ends all of them, and what one raises is raised."""
    processes = min(num_cores(), count)
    if processes < 2 or count > _MOST_TICKETS:
        return [job(number) for number in range(count)]
    tickets, written = os.pipe()
    children: list[_Child] = []
    found: dict[int, Any] = {}
    try:
        for _ in range(processes):
            children.append(_forked(tickets, written, job))
        # Only now do they begin: one that is forked while Ctrl-C comes, and that nobody knows of, finds no number.
        os.write(written, b"".join(number.to_bytes(_TICKET_BYTES, "little") for number in range(count)))
        os.close(written)
        written = -1
        for child in children:
            found |= _answers_of(child)
    except BaseException:
        for child in children:
            os.kill(child.pid, signal.SIGKILL)
        raise
    finally:
        for end in (tickets, written):
            if end >= 0:
                os.close(end)
        for child in children:
            os.close(child.answers)
            os.waitpid(child.pid, 0)
    for number in range(count):
        if number not in found:  # its process was killed, or raised what is raised here once more
            found[number] = job(number)
    return [found[number] for number in range(count)]


def _forked(tickets: int, tickets_written: int, job: Callable[[int], object]) -> _Child:
    answers, written = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(tickets_written)
        _run(tickets, written, job)
    os.close(written)
    return _Child(pid, answers)


def _run(tickets: int, written: int, job: Callable[[int], object]) -> None:
    """Play numbers as long as there are any, in a child. It never returns."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent takes it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        found: dict[int, object] = {}
        while ticket := os.read(tickets, _TICKET_BYTES):
            number = int.from_bytes(ticket, "little")
            found[number] = job(number)
        with os.fdopen(written, "wb") as file:
            pickle.dump(found, file)
    finally:
        os._exit(0)


def _answers_of(child: _Child) -> dict[int, Any]:
    """Return what ``child`` returned; nothing of one that was killed."""
    parts = []
    while part := os.read(child.answers, 1 << 20):
        parts.append(part)
    whole = b"".join(parts)
    try:
        found: dict[int, Any] = pickle.loads(whole)
    except (EOFError, pickle.UnpicklingError):
        return {}
    return found
