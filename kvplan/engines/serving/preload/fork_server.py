"""Imports an engine once and forks a server of it for each order; runs in the engine's Python.

    python fork_server.py DESCRIPTOR MODULE...   # DESCRIPTOR: of a Unix socket; MODULE: imported, where it is there

An order is that of a keeper (see keeper.py) whose ``argv`` is ``python -m MODULE ...``, and comes with two
descriptors, the keeper's stdin and stdout. What is forked has no device, no thread that runs and nothing but imports
behind it: it is what ``python -m MODULE`` is after its imports. The process ends when the socket closes.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import runpy
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

_HERE: Final = Path(__file__).resolve().parent
_ORDER_BYTES: Final = 1 << 20


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    modules = sys.argv[2:]
    # This folder is no place to import from; ``python -m`` has the working directory there.
    sys.path[0] = os.getcwd()
    before = dict(os.environ)
    _import_all(modules)
    gc.collect()
    gc.freeze()  # the collector of a fork would write to pages that are shared
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _ORDER_BYTES, 2)
        if not message:
            os._exit(0)
        _reap()
        sys.stdout.flush()
        if os.fork() == 0:
            control.close()
            _keep(json.loads(message), descriptors, before)
        for descriptor in descriptors:
            os.close(descriptor)


def _import_all(names: list[str]) -> None:
    """One that is not there is the server's to complain about."""
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"{name} is not imported beforehand: {error}", flush=True)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _keep(order: dict[str, Any], descriptors: list[int], before: dict[str, str]) -> NoReturn:
    """Be the keeper of a server, in a session of its own."""
    os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    keeper = _beside("keeper", _HERE.parent)

    def start(log: Any) -> ForkedServer:
        pid = os.fork()
        if pid == 0:
            keeper.default_signals()
            _serve(order, log.fileno(), before)
        return ForkedServer(pid)

    os._exit(keeper.keep(order, start))  # without the engine's own ways to end


def _beside(name: str, folder: Path) -> ModuleType:
    """A file of ours, under a name that no package has."""
    spec = importlib.util.spec_from_file_location(f"_kvplan_{name}", folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _serve(order: dict[str, Any], log: int, before: dict[str, str]) -> NoReturn:
    """Be the server."""
    empty = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((empty, log, log)):
        os.dup2(descriptor, number)
    os.close(empty)
    module, *arguments = order["argv"][2:]
    sys.modules.pop(module, None)  # runpy runs it anew
    _beside("spares", _HERE).provide()
    _take_environment(order["environment"], before)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit(0)


def _take_environment(wanted: dict[str, str], before: dict[str, str]) -> None:
    """What differs from the environment before the imports; what these have set stays."""
    for name in before.keys() - wanted.keys():
        os.environ.pop(name, None)
    os.environ.update({name: value for name, value in wanted.items() if value != before.get(name)})


class ForkedServer:
    """A keeper's Server that was forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        if self._exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._exit_code = os.waitstatus_to_exitcode(status)
        return self._exit_code


if __name__ == "__main__":
    main()
