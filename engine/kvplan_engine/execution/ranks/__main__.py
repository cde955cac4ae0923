"""``python -m kvplan_engine.execution.ranks FD``: the process of a rank that follows the first one."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from multiprocessing.connection import Connection

from kvplan_engine.execution.ranks.messages import LOST_PEER, Load, Refusal


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
    from kvplan_engine.errors import EngineError
    from kvplan_engine.execution.ranks.following import FollowingRank

    gc.enable()
    try:
        FollowingRank(order, connection).run()
    except EngineError as problem:
        connection.send(Refusal.of(problem))
        return 1
    except (EOFError, ConnectionError):  # the first rank has ended
        return 0
    except RuntimeError as lost:
        print(f"rank {order.rank.index}: {lost}", file=sys.stderr)
        return LOST_PEER
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # threads of the collectives may still wait for a lost rank
