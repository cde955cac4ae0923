"""Ranks as forks of this process, which have its compiled kernels and see what it shares: they start in no time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

PATIENCE_SECONDS = 60


def exit_codes(num_ranks: int, work: Callable[[int], bool]) -> list[int]:
    """Of each rank 0 where ``work`` of its number was true. AssertionError where one hangs."""
    pids = [_fork(work, rank) for rank in range(num_ranks)]
    return [_code_of(pid, pids) for pid in pids]


def _fork(work: Callable[[int], bool], rank: int) -> int:
    pid = os.fork()
    if not pid:
        is_right = False
        try:
            is_right = work(rank)
        finally:
            os._exit(0 if is_right else 1)
    return pid


def _code_of(pid: int, pids: list[int]) -> int:
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            for each in pids[pids.index(pid) :]:  # those before have ended
                os.kill(each, signal.SIGKILL)
            raise AssertionError("a rank waits for ever")
        time.sleep(0.005)
