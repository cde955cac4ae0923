"""The sweep's end of a fork server: begin its imports, and have servers forked from it."""

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

from kvplan.engines.interface import Preload
from kvplan.errors import KvplanError

_SCRIPT: Final = Path(__file__).parent / "fork_server.py"


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
