"""Ports of the loopback: a free one, and whether a process of ours is who listens on it."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
_LISTENING: Final = "0A"
_POLL_SECONDS: Final = 0.05


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
        time.sleep(_POLL_SECONDS)
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
