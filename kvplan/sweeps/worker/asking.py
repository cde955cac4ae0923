"""Which GPU a worker opens, asked where no worker is at hand: one is started for the question, and ended."""

from __future__ import annotations

from kvplan.machine.opened_device import NoGpu, OpenedGpu
from kvplan.sweeps.worker.early import EarlyWorker


def ask_own_worker() -> OpenedGpu | NoGpu:
    """Ask as ``EarlyWorker.ask_device`` does, by a process of its own, which leaves nothing on the GPU."""
    with EarlyWorker() as worker:
        return worker.ask_device()
