"""One server of an engine, from its command to its end: where it listens, what it said, whether it still runs."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from kvplan.engines.interface import EngineAdapter, StartedEngine, StartOrder
from kvplan.engines.serving.keeper import descendants
from kvplan.engines.serving.process import Keep, ServerProcess, StartedKeeper
from kvplan.errors import KvplanError
from kvplan.machine.host import cpu_seconds_of
from kvplan.metrics.http import PersistentConnection, ServerAddress
from kvplan.metrics.reading import ServerReading
from kvplan.metrics.source import MetricsSource

HOST: Final = "127.0.0.1"
_LISTENING: Final = "0A"
_PORT_POLL_SECONDS: Final = 0.05
_POLL_SECONDS: Final = 0.1
_ANSWER_SECONDS: Final = 5.0
_OK: Final = 200
_PORT_SECONDS: Final = 20.0
_DYING_SECONDS: Final = 10.0


@dataclass(slots=True)
class EngineServer:
    """A server that this process started. start_seconds, told: once it is up.

    is_preloaded: it was forked from a process that had imported the engine, so start_seconds are without the imports.
    """

    adapter: EngineAdapter
    order: StartOrder
    process: ServerProcess
    is_preloaded: bool = False
    start_seconds: float | None = None
    told: StartedEngine = field(default_factory=StartedEngine)

    @staticmethod
    def start(adapter: EngineAdapter, order: StartOrder, log_path: Path, keep: Keep = StartedKeeper) -> EngineServer:
        """KvplanError if there is no such program. A log of an earlier attempt is replaced."""
        log_path.unlink(missing_ok=True)
        order = replace(order, port=free_port())
        process = ServerProcess(adapter.command(order), log_path, keep=keep)
        return EngineServer(adapter, order, process, is_preloaded=keep is not StartedKeeper)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.order.port}"

    @property
    def model_name(self) -> str:
        return self.order.served_model_name

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def log(self) -> str:
        return self.process.log()

    def cpu_seconds(self) -> float:
        """CPU time of all its processes."""
        return cpu_seconds_of(descendants(self.process.keeper_pid))

    def wait_until_ready(self, limit_seconds: float) -> Readiness:
        """Until it serves; then it also has said what it holds."""
        readiness = wait_until_ready(self.process, self.order.port, self.adapter.health_path, limit_seconds)
        if readiness.seconds is not None:
            self.start_seconds = readiness.seconds
            self.told = self.adapter.started(self.log(), self._reading())
        return readiness

    def is_alive(self) -> bool:
        """Whether it serves on, after requests have failed. One that is dying gets a moment to be gone."""
        deadline = time.monotonic() + _DYING_SECONDS
        while time.monotonic() < deadline:
            if not self.process.is_running:
                return False
            if answers(self.order.port, self.adapter.health_path):
                return True
            time.sleep(0.2)
        return False

    def stop(self) -> None:
        """End it, and wait for its processes and its port."""
        self.process.stop()
        wait_until_free(self.order.port, _PORT_SECONDS)

    def _reading(self) -> ServerReading | None:
        try:
            with MetricsSource(self.url) as source:
                return source.read()
        except KvplanError:
            return None


@dataclass(frozen=True, slots=True)
class Readiness:
    """seconds: from the call to the first good answer, None where there was none. is_late: it still ran, unready."""

    seconds: float | None
    is_late: bool = False


def wait_until_ready(process: ServerProcess, port: int, health_path: str, limit_seconds: float) -> Readiness:
    """Until the server answers, ends, or takes longer than the limit.

    KvplanError if somebody else answers on its port: a foreign server must not be measured in its place.
    """
    started = time.monotonic()
    while time.monotonic() - started < limit_seconds:
        if not process.is_running:
            return Readiness(None)
        if answers(port, health_path):
            if listens(port, [process.keeper_pid, *descendants(process.keeper_pid)]) is False and process.is_running:
                raise KvplanError(f"Another server listens on port {port}.", hint="run the sweep again")
            return Readiness(time.monotonic() - started)
        time.sleep(_POLL_SECONDS)
    return Readiness(None, is_late=True)


def answers(port: int, path: str) -> bool:
    """Whether a good answer comes from there now."""
    try:
        with PersistentConnection(
            ServerAddress.parse(f"{HOST}:{port}"), None, timeout_seconds=_ANSWER_SECONDS
        ) as connection:
            return connection.get(path).status == _OK
    except KvplanError:
        return False


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((HOST, port))
        except OSError:
            return False
    return True


def wait_until_free(port: int, seconds: float) -> bool:
    """Whether the port became free in time."""
    deadline = time.monotonic() + seconds
    while not is_free(port):
        if time.monotonic() > deadline:
            return False
        time.sleep(_PORT_POLL_SECONDS)
    return True


def listens(port: int, pids: Collection[int]) -> bool | None:
    """Whether one of these processes listens on the port; None where the system does not tell."""
    inodes = _listening_inodes(port)
    if inodes is None:
        return None
    return any(inode in inodes for pid in pids for inode in _socket_inodes(pid))


def _listening_inodes(port: int) -> set[str] | None:
    """Return the inodes of the sockets that listen on the port (proc(5), /proc/net/tcp)."""
    found: set[str] = set()
    tables = [path for path in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")) if path.exists()]
    for table in tables:
        for line in table.read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                found.add(rest[5])
    return found if tables else None


def _socket_inodes(pid: int) -> set[str]:
    found: set[str] = set()
    with contextlib.suppress(OSError):  # it ended meanwhile
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found
