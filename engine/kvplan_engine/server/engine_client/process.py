"""The engine's process, as the operating system sees it: starting it, and how it ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping

from kvplan_engine.errors import describe_exit


def start_process(theirs: socket.socket, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """The engine's process, which talks through ``theirs``. What it prints goes to the standard error.

    environment: of variables, those that it does not inherit.
    """
    # A session of its own: Ctrl-C in the terminal reaches this process alone, which then drains.
    return subprocess.Popen(
        [sys.executable, "-m", "kvplan_engine.server.engine_process", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        start_new_session=True,
        env={**os.environ, **environment},
    )


def describe_ending(code: int | None) -> str:
    """What follows "The engine process". code: the process's return code, None while it runs."""
    if code is None:
        return "closed its connection"
    return describe_exit(code)
