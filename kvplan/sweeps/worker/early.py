"""A worker that starts before its sweep is planned: torch takes it two seconds to import, and planning half of one.

Memory that is written once before another process needs it, so that its first writes there are quick.

A host may take back what a virtual machine has freed (free page reporting, balloons), and gives it again page by page
as it is written: 2 ms a MiB where that was measured, 0.12 for memory that the host still backs. What one process of the
machine has written and freed is backed for the next one, for some seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from kvplan.errors import KvplanError
from kvplan.machine.device import NoGpu, OpenedGpu
from kvplan.machine.host import free_memory_bytes
from kvplan.sweeps.worker.client import WORKER_COMMAND, TimeLimits, Worker
from kvplan.workers.process import WorkerDied, WorkerProcess, WorkerTimeout

_PIECE_BYTES: Final = 8 * 1024**2
_POPULATE_WRITE: Final = 23  # MADV_POPULATE_WRITE of Linux 5.14; before that it is refused, and nothing is written
_SHARE: Final = 0.5  # of the memory that is free; nothing else must feel this


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


class WarmMemory:
    """Writes ``num_bytes`` of memory in a thread of its own, at most half of what is free, until ``release``.

    Linux alone; elsewhere, and where the system refuses, it does nothing.
    """

    def __init__(self, num_bytes: int) -> None:
        wanted = min(num_bytes, int(_SHARE * free_memory_bytes())) // _PIECE_BYTES * _PIECE_BYTES
        self.num_written = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(wanted,), name="warm-memory", daemon=True)
        if wanted > 0 and sys.platform == "linux":
            self._thread.start()

    def release(self) -> None:
        """Stop, and give everything back before this returns. May be called again."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _hold(self, num_bytes: int) -> None:
        try:
            mapping = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError):
            return
        with mapping:
            with contextlib.suppress(OSError):  # a system without huge pages
                mapping.madvise(mmap.MADV_HUGEPAGE)
            self._write(mapping)
            self._stopped.wait()

    def _write(self, mapping: mmap.mmap) -> None:
        """mmap's own madvise would keep the interpreter waiting."""
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        view = ctypes.c_char.from_buffer(mapping)
        address = ctypes.addressof(view)
        while self.num_written < len(mapping) and not self._stopped.is_set():
            if advise(address + self.num_written, _PIECE_BYTES, _POPULATE_WRITE):
                return
            self.num_written += _PIECE_BYTES
