"""``python -m kvplan_engine.execution.ranks FD``: the process of a rank that follows the first one."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import sys
import time
from functools import partial
from multiprocessing.connection import Connection
from types import TracebackType
from typing import NoReturn

from kvplan_engine.execution.ranks.group import LossWatch
from kvplan_engine.execution.ranks.messages import LOST_PEER, Load, Refusal

_SECONDS_TO_END = 2.0
"""By itself, after the first rank has."""


def main() -> int:
    """Until the first rank closes the connection, or dies; LOST_PEER where another rank has."""
    # The first rank decides when to end: Ctrl-C and a supervisor's SIGTERM reach this process too.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.getLogger("kvplan_engine").setLevel(logging.ERROR)  # the first rank has said the same
    connection = Connection(int(sys.argv[1]))
    try:
        order = connection.recv()
    except EOFError:
        return 0
    assert isinstance(order, Load), order

    gc.disable()  # importing torch would set off a thousand collections, which find nothing
    from kvplan_engine.device.collectives import is_lost
    from kvplan_engine.errors import EngineError
    from kvplan_engine.execution.ranks.following import FollowingRank

    gc.enable()
    LossWatch([connection.fileno()], partial(_end_soon, order))
    try:
        FollowingRank(order, connection).run()
    except EngineError as problem:
        connection.send(Refusal.of(problem))
        return 1
    except (EOFError, ConnectionError):  # the first rank has ended
        _tidy(order)
        return 0
    except RuntimeError as error:
        if not is_lost(error):
            raise
        _tidy(order)
        return LOST_PEER  # the first rank, if it is not this one, says which it was
    return 0


def _end_soon(order: Load) -> None:
    """The first rank has ended. What the main thread waits for may not say so: NCCL waits for it on the GPU."""
    time.sleep(_SECONDS_TO_END)
    _tidy(order)
    _exit_at_once(0)


def _tidy(order: Load) -> None:
    """Remove where the ranks met: a first rank that was killed cannot."""
    shutil.rmtree(os.path.dirname(order.meeting), ignore_errors=True)


def _exit_at_once(code: int) -> NoReturn:
    """Exit without waiting for threads of the collectives, which may wait for a lost rank themselves."""
    sys.stderr.flush()
    os._exit(code)


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> NoReturn:
    sys.__excepthook__(kind, error, trace)
    _exit_at_once(1)


if __name__ == "__main__":
    sys.excepthook = _report
    _exit_at_once(main())
