"""The first process that a server spawns, forked beforehand: a child of the server as it would be.

A fork of a server that runs would take over its locks and its device. A spare is forked before the server has done
anything, waits, and becomes the process for which multiprocessing's ``spawn`` would start an interpreter: same parent,
same descriptors, same environment. Every later one is spawned, and so is what the spare spawns: a process that computes
on a CPU, because OpenMP reads its threads and their cores from the environment when it is loaded.
"""

from __future__ import annotations

import json
import multiprocessing.spawn
import multiprocessing.util
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

_ORDER_BYTES: Final = 1 << 20
_MOST_DESCRIPTORS: Final = 32
_HIGH: Final = 200
"""Above every descriptor that a young process passes on."""
_FLAG: Final = "--multiprocessing-fork"


@dataclass(frozen=True)
class Spare:
    """A child that waits. control: closes with the process that has it, and then the child ends."""

    pid: int
    control: socket.socket

    def become(self, arguments: Sequence[Any], descriptors: Sequence[int]) -> int:
        """Make it what ``arguments`` would start, with these descriptors under their numbers. Its pid."""
        order = {
            "program": _text(arguments[list(arguments).index("-c") + 1]),
            "environment": dict(os.environ),
            "descriptors": list(descriptors),
        }
        socket.send_fds(self.control, [json.dumps(order).encode()], list(descriptors))
        self.control.close()
        return self.pid


def provide() -> None:
    """Fork a spare for this process, and let multiprocessing take it."""
    spares = [_fork()]
    spawn = multiprocessing.util.spawnv_passfds
    usual = multiprocessing.spawn.get_executable()

    def spawn_or_take(path: Any, arguments: Sequence[Any], descriptors: Sequence[int]) -> int:
        is_process = _FLAG in map(_text, arguments) and _text(path) == _text(usual)
        if is_process and spares:
            return spares.pop().become(arguments, descriptors)
        return spawn(path, arguments, descriptors)

    multiprocessing.util.spawnv_passfds = spawn_or_take  # type: ignore[assignment]


def _text(word: Any) -> str:
    return os.fsdecode(word)


def _fork() -> Spare:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        ours.close()
        _wait(its)
    its.close()
    return Spare(pid, ours)


def _wait(control: socket.socket) -> NoReturn:
    """Until there is something to become; the end with the parent."""
    message, descriptors, _, _ = socket.recv_fds(control, _ORDER_BYTES, _MOST_DESCRIPTORS)
    control.close()
    if not message:
        os._exit(0)
    order = json.loads(message)
    os.environ.clear()
    os.environ.update(order["environment"])
    _renumber(descriptors, order["descriptors"])
    sys.argv = ["-c", _FLAG]
    exec(order["program"], {"__name__": "__main__"})
    sys.exit(0)


def _renumber(received: Sequence[int], wanted: Sequence[int]) -> None:
    """Descriptors as the parent numbers them. First all move up, so that none is overwritten before it has moved."""
    moved = []
    for number, descriptor in enumerate(received):
        moved.append(_HIGH + number)
        os.dup2(descriptor, moved[-1], inheritable=False)
        os.close(descriptor)
    for descriptor, number in zip(moved, wanted, strict=True):
        os.dup2(descriptor, number, inheritable=False)
        os.close(descriptor)
