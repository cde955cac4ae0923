"""The worker process of a sweep: holds the engine, runs one trial after the other, and reports.

Started as ``python -m kvplan.sweeps.worker.process``; see :mod:`kvplan.sweeps.worker.protocol`. A failure that belongs
to the trial (memory, a rejected context) is a result; any other exception ends the process, which the parent records
as a crash with the last line of this process's log.
"""

from __future__ import annotations

from kvplan.sweeps.worker.protocol import DEVICE, RESERVE, TrialOrder
from kvplan.workers.channel import WorkerChannel
from kvplan.workers.imports import quick_imports


def main() -> None:
    channel = WorkerChannel.open()
    # The engine and torch are imported here, after stdout is safe and while a thread watches for the parent's death.
    with quick_imports():
        from kvplan.sweeps.worker.engine_host import EngineHost, greeting
        from kvplan.sweeps.worker.opened import first_reserve, opened_gpu
        from kvplan.sweeps.worker.trial import run_trial

    channel.send(greeting())
    host = EngineHost()
    while True:
        message = channel.receive()
        if message["type"] == DEVICE:
            channel.send(opened_gpu())
            continue
        order = TrialOrder.from_json(message)
        if message["type"] == RESERVE:
            channel.send(first_reserve(host, order, channel.send))
            continue
        result = run_trial(host, order, channel.send)
        channel.send(result.as_message(order.trial_id))


if __name__ == "__main__":
    main()
