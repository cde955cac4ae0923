"""A worker that starts before its sweep is planned: torch takes it two seconds to import, and planning half of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from kvplan.errors import KvplanError
from kvplan.machine.device import NoGpu, OpenedGpu
from kvplan.machine.warm_memory import WarmMemory
from kvplan.sweeps.worker.client import WORKER_COMMAND, TimeLimits, Worker
from kvplan.workers.process import WorkerDied, WorkerProcess, WorkerTimeout


class EarlyWorker:
    """Starts a worker now. It ends with the ``with`` block, unless somebody took it."""

    def __init__(self, command: Sequence[str] = WORKER_COMMAND) -> None:
        self._process: WorkerProcess | None = WorkerProcess(command)
        self._asked: Worker | None = None
        self._memory: WarmMemory | None = None

    def ask_device(self) -> OpenedGpu | NoGpu:
        """The GPU that it opens, which is then the one that its trials run on. KvplanError if it dies of that."""
        assert self._process is not None, "it was taken"
        self._asked = Worker(self._process)
        try:
            return self._asked.ask_device(TimeLimits())
        except (WorkerDied, WorkerTimeout) as end:
            raise KvplanError(f"No device could be opened. {end}", hint="--device cpu leaves the GPU alone") from None

    def expect(self, num_bytes: int) -> None:
        """It will write so much memory first, which is made quick to write until it is ready (one that answered is)."""
        if self._memory is None and self._asked is None:
            self._memory = WarmMemory(num_bytes)

    def take(self, log_path: Path) -> Worker | None:
        """The worker, whose stderr is appended to ``log_path``; None where it was taken before, or has ended."""
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            process.log_to(log_path)
        except WorkerDied:
            self._release()  # which only its own start gives back
            return None
        return self._asked or Worker(process, when_ready=self._release)

    def __enter__(self) -> EarlyWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()
        if self._process is not None:
            self._process.kill()

    def _release(self) -> None:
        if self._memory is not None:
            self._memory.release()


def ask_own_worker() -> OpenedGpu | NoGpu:
    """Ask as ``EarlyWorker.ask_device`` does, by a process of its own, which leaves nothing on the GPU."""
    with EarlyWorker() as worker:
        return worker.ask_device()
