"""The worker process of a sweep: holds the engine, runs one trial after the other, and reports.

Started as ``python -m kvplan.sweeps.worker.process``; see :mod:`kvplan.sweeps.worker.protocol`. A failure that belongs
to the trial (memory, a rejected context) is a result; any other exception ends the process, which the parent records
as a crash with the last line of this process's log.
"""

from __future__ import annotations

from kvplan.workers.channel import WorkerChannel, quick_imports


def main() -> None:
    channel = WorkerChannel.open()
    # The engine and torch are imported here, after stdout is safe and while a thread watches for the parent's death.
    with quick_imports():
        from kvplan.sweeps.worker.answers import answer
        from kvplan.sweeps.worker.engine_host import EngineHost, greeting

    channel.send(greeting())
    host = EngineHost()
    while True:
        channel.send(answer(host, channel.receive(), channel.send))


if __name__ == "__main__":
    main()
