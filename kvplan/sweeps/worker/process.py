"""The worker process of a sweep: holds the engine, runs one trial after the other, and reports.

Started as ``python -m kvplan.sweeps.worker.process``; see :mod:`kvplan.sweeps.worker.protocol`. It ends when its stdin
closes. A failure that belongs to the trial (memory, a refused context) is a result; any other exception ends the
process, which the parent records as a crash with the last line of this process's log.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from types import TracebackType
from typing import BinaryIO

from kvplan.sweeps.worker.protocol import Message, TrialOrder, decode, encode


class Channel:
    """The worker's end of the conversation. Whatever else is printed to stdout goes to stderr."""

    def __init__(self, output: BinaryIO) -> None:
        self._output = output

    @staticmethod
    def take_over_stdout() -> Channel:
        """Keep the pipe for messages and let file descriptor 1 point at stderr, also for code outside Python."""
        output = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)
        return Channel(output)

    def send(self, message: Message) -> None:
        self._output.write(encode(message))


def _read_orders(orders: queue.Queue[TrialOrder]) -> None:
    """Runs in a thread of its own, so that the end of stdin ends the process also in the middle of a trial."""
    for line in sys.stdin.buffer:
        message = decode(line)
        if message["type"] == "trial":
            orders.put(TrialOrder.from_json(message))
    os._exit(0)


def _end_at_once(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The thread that reads stdin would make Python abort at its end, and hide the error's line in the log."""
    sys.__excepthook__(kind, error, trace)
    sys.stderr.flush()
    os._exit(1)


def main() -> None:
    sys.excepthook = _end_at_once
    channel = Channel.take_over_stdout()
    orders: queue.Queue[TrialOrder] = queue.Queue()
    threading.Thread(target=_read_orders, args=(orders,), daemon=True).start()

    # The engine and torch are imported here, after the pipe is safe and with a thread that notices a dead parent.
    from kvplan.sweeps.worker.trial import EngineHost, greeting, run_trial

    channel.send(greeting())
    host = EngineHost()
    while True:
        order = orders.get()
        result = run_trial(host, order, channel.send)
        channel.send(result.as_message(order.trial_id))


if __name__ == "__main__":
    main()
