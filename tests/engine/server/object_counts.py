"""How many objects a server's two processes hold, which Python counts itself: the heap's noise is not in it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from server_process import ServerProcess, wait_for

_STARTED_BY_PYTHON = Path(__file__).parent / "counting"


class ObjectCounts:
    """Created before the server, whose processes inherit what it sets."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._directory = directory
        monkeypatch.setenv("KVPLAN_TEST_COUNTS", str(directory))
        monkeypatch.syspath_prepend(str(_STARTED_BY_PYTHON))

    def of(self, server: ServerProcess) -> dict[str, int]:
        """By process, after a collection in each: small blocks of memory that Python has given out."""
        return {
            "api": self._of_process(server, server.process.pid),
            "engine": self._of_process(server, server.engine_pid),
        }

    def _of_process(self, server: ServerProcess, pid: int) -> int:
        path = self._directory / str(pid)
        path.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR1)
        wait_for(server.stats, lambda _: path.exists())  # asking wakes the process
        return int(path.read_text(encoding="utf-8"))
