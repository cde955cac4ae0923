"""Plays that do not depend on each other, on several cores: each in a process that is forked off and ends with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from typing import Final, TypeVar

Result = TypeVar("Result")
_MOST_PROCESSES: Final = 8
_jobs: list[Callable[[int], object]] = []
"""What the processes that are forked off run: they inherit it, so nothing of a play has to be sent there."""


def num_cores() -> int:
    """Cores that this process may use for plays; 1 where processes cannot be forked off safely."""
    if not sys.platform.startswith("linux"):
        return 1
    return min(len(os.sched_getaffinity(0)), _MOST_PROCESSES)


def side_by_side(count: int, job: Callable[[int], Result]) -> list[Result]:
    """Return what ``job`` returns for 0 to ``count`` - 1. Ctrl-C ends all of them."""
    processes = min(num_cores(), count)
    if processes < 2:
        return [job(number) for number in range(count)]
    _jobs.append(job)
    try:
        with multiprocessing.get_context("fork").Pool(processes, _leave_ctrl_c_to_the_parent) as pool:
            return pool.map(_run, range(count), chunksize=1)  # type: ignore[arg-type]
    finally:
        _jobs.pop()


def _run(number: int) -> object:
    return _jobs[-1](number)


def _leave_ctrl_c_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
