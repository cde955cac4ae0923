"""The sweep's end of a keeper: start a server, know whether it runs, end it and all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Final, Protocol

from kvplan.engines.interface import Command
from kvplan.errors import KvplanError
from kvplan.workers.process import same_imports

_KEEPER: Final = "kvplan.engines.serving.keeper"
PATIENCE_SECONDS: Final = 20.0
"""For a server that was asked to end, before it is killed."""
_KEEPER_SECONDS: Final = 30.0


class Keeper(Protocol):
    """A keeper's process. stdin: it ends its server when this closes. stdout: its messages, from ``pid`` on."""

    pid: int
    stdin: IO[bytes]
    stdout: IO[bytes]

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Whether it has, after at most this time."""

    def close(self) -> None:
        """Forget it."""


Keep = Callable[[Mapping[str, Any]], Keeper]
"""Makes the keeper of an order."""


class StartedKeeper:
    """A Keeper that was started with its order."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        # A session of its own: Ctrl-C in the terminal reaches this process alone, which then decides.
        self._process = subprocess.Popen(
            [sys.executable, "-m", _KEEPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=same_imports(),
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self.pid = self._process.pid
        self.stdin: IO[bytes] = self._process.stdin
        self.stdout: IO[bytes] = self._process.stdout
        self.stdin.write((json.dumps(order) + "\n").encode())
        self.stdin.flush()
        self.stdout.readline()  # its pid

    def has_ended(self, seconds: float = 0.0) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll() is not None

    def close(self) -> None:
        self._process.wait()


class ServerProcess:
    """One server, which ends when this process does. log_path: a file that its output is appended to.

    keep: what makes the keeper of an order; by default it is started. Any thread may ask for its state and stop it.
    """

    def __init__(
        self,
        command: Command,
        log_path: Path,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        keep: Keep = StartedKeeper,
    ) -> None:
        """KvplanError if there is no such program."""
        self._patience = patience_seconds
        self._lock = threading.RLock()  # of the keeper's pipes and of its end
        self._exit_code: int | None = None
        self._log_path = log_path
        self._log_start = log_path.stat().st_size if log_path.exists() else 0
        self._keeper = keep(
            {
                "argv": list(command.argv),
                "environment": environment_with(command.environment),
                "log": str(log_path.absolute()),
                "patience_seconds": patience_seconds,
            }
        )
        first = self._read()
        if "pid" not in first:
            self.stop()
            raise KvplanError(
                f"The server cannot be started: {first.get('error', 'its keeper died')}.", hint="check --engine-python"
            )
        self.pid: int = first["pid"]
        os.set_blocking(self._keeper.stdout.fileno(), False)

    @property
    def keeper_pid(self) -> int:
        """Id of the process that every process of the server descends from."""
        return self._keeper.pid

    @property
    def is_running(self) -> bool:
        return self.poll() is None

    def poll(self) -> int | None:
        """The server's exit code (negative: the signal that ended it); None while it runs."""
        with self._lock:
            if self._exit_code is None:
                self._exit_code = self._read().get("exit_code")
                if self._exit_code is None and self._keeper.has_ended():
                    self._exit_code = self._read().get("exit_code", -signal.SIGKILL)
            return self._exit_code

    def log(self) -> str:
        """What the server has printed so far."""
        try:
            return self._log_path.read_bytes()[self._log_start :].decode("utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def stop(self) -> None:
        """Ask it to end, kill it if it does not, and wait until no process of it is left."""
        with self._lock:
            if self._keeper.stdout.closed:
                return
            with contextlib.suppress(BrokenPipeError):
                self._keeper.stdin.close()
            if not self._keeper.has_ended(self._patience + _KEEPER_SECONDS):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._keeper.pid, signal.SIGKILL)
            self.poll()
            self._keeper.close()
            self._keeper.stdout.close()

    def _read(self) -> dict[str, Any]:
        """The keeper's next message; empty where there is none."""
        if self._keeper.stdout.closed:
            return {}
        line = self._keeper.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {}
        return found


def environment_with(changes: Mapping[str, str | None]) -> dict[str, str]:
    """This process's environment with ``changes``; what is None is taken away."""
    merged: dict[str, str | None] = {**os.environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}
