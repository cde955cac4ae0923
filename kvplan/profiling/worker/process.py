"""The worker process of a profile: runs one order and ends.

Started as ``python -m kvplan.profiling.worker.process``; see :mod:`kvplan.profiling.protocol`.
"""

from __future__ import annotations

from kvplan.profiling.protocol import ProfileOrder
from kvplan.workers.channel import WorkerChannel, quick_imports


def main() -> None:
    channel = WorkerChannel.open()
    # The engine and torch are imported here, after stdout is safe and while a thread watches for the parent's death.
    with quick_imports():
        from kvplan.profiling.worker.recording import run_profile
        from kvplan.sweeps.worker.engine_host import EngineHost, greeting

    channel.send(greeting())
    channel.send(run_profile(EngineHost(), ProfileOrder.from_json(channel.receive()), channel.send))
    channel.wait_for_the_end()


if __name__ == "__main__":
    main()
