"""Starts the servers of a sweep, forked from a process that has imported the engine where its adapter preloads."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

from kvplan.engines.interface import EngineAdapter, Preload, Preloads, StartOrder
from kvplan.engines.server import EngineServer
from kvplan.engines.serving.process import environment_with
from kvplan.errors import KvplanError

_SCRIPT: Final = Path(__file__).parent / "serving" / "preload" / "fork_server.py"
PRELOAD_LOG: Final = "preload.log"
"""Of the imports, beside the logs of the servers."""


def preload_of(adapter: EngineAdapter) -> Preload | None:
    """What this adapter's servers are forked from; None where each is started."""
    # A fork is watched through pidfd_open, which only Linux has.
    return adapter.preload if isinstance(adapter, Preloads) and hasattr(os, "pidfd_open") else None


class Starter:
    """Imports the engine once, at the first start."""

    def __init__(self, adapter: EngineAdapter) -> None:
        self._adapter = adapter
        self._preload = preload_of(adapter)
        self._forks: ForkServer | None = None

    def start(self, order: StartOrder, log: Path) -> EngineServer:
        """KvplanError if there is no such program."""
        if self._preload is not None and self._forks is None:
            log_of_imports = log.parent / PRELOAD_LOG
            self._forks = ForkServer(self._preload, environment_with(self._preload.environment), log_of_imports)
        if self._forks is not None:
            with contextlib.suppress(KvplanError):  # the imports did not survive, and a start says why
                return EngineServer.start(self._adapter, order, log, self._forks.keeper)
            self.give_up_preload()
        return EngineServer.start(self._adapter, order, log)

    def give_up_preload(self) -> None:
        """Start every server from now on."""
        self.close()
        self._preload = None

    def close(self) -> None:
        """End what was imported; servers stay."""
        if self._forks is not None:
            self._forks.close()
        self._forks = None


class ForkServer:
    """Imports in the background from its making on. log_path: what the imports print is appended to it."""

    def __init__(self, preload: Preload, environment: Mapping[str, str], log_path: Path) -> None:
        """OSError if there is no such program."""
        self._control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its, open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                [preload.python, str(_SCRIPT), str(its.fileno()), *preload.modules],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environment),
                pass_fds=[its.fileno()],
                start_new_session=True,
            )

    def keeper(self, order: Mapping[str, Any]) -> ForkedKeeper:
        """A keeper with a server below it, once the imports are done. KvplanError where the process has ended."""
        its_stdin, stdin = os.pipe()
        stdout, its_stdout = os.pipe()
        with contextlib.suppress(OSError):  # it has ended, which reading tells
            socket.send_fds(self._control, [json.dumps(order).encode()], [its_stdin, its_stdout])
        os.close(its_stdin)
        os.close(its_stdout)
        return ForkedKeeper(open(stdin, "wb"), open(stdout, "rb"))

    def close(self) -> None:
        """End it, imports or not. Keepers that were forked from it are not ended."""
        self._control.close()
        self._process.kill()
        self._process.wait()


class ForkedKeeper:
    """A Keeper that was forked: no child of this process, so it is watched through a descriptor (pidfd_open(2))."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        """KvplanError if it dies before it has said who it is, once the imports are done."""
        self.stdin, self.stdout = stdin, stdout
        line = stdout.readline()
        if not line:
            stdin.close()
            stdout.close()
            raise KvplanError("The process with the engine's imports has ended.")
        self.pid: int = json.loads(line)["keeper_pid"]
        self._descriptor = os.pidfd_open(self.pid)

    def has_ended(self, seconds: float = 0.0) -> bool:
        return bool(select.select([self._descriptor], [], [], seconds)[0])

    def close(self) -> None:
        os.close(self._descriptor)
