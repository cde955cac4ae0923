"""A worker that starts before its sweep is planned: torch takes it two seconds to import, and planning half of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from kvplan.machine.warm_memory import WarmMemory
from kvplan.sweeps.worker.client import WORKER_COMMAND, Worker
from kvplan.workers.process import WorkerDied, WorkerProcess


class EarlyWorker:
    """Starts a worker now. It ends with the ``with`` block, unless somebody took it."""

    def __init__(self, command: Sequence[str] = WORKER_COMMAND) -> None:
        self._process: WorkerProcess | None = WorkerProcess(command)
        self._memory: WarmMemory | None = None

    def expect(self, num_bytes: int) -> None:
        """It will write so much memory first, which is made quick to write until it is ready."""
        if self._memory is None:
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
        return Worker(process, when_ready=self._release)

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
