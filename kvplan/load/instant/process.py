"""The instant server's process, for as long as it is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from kvplan.errors import KvplanError

_COMMAND = (sys.executable, "-m", "kvplan.load.instant.server")


@contextmanager
def instant_server() -> Iterator[str]:
    """Its address. The process ends with the block, and with this process whatever ends that: its input closes."""
    process = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        if not port:
            raise KvplanError("The server for the self-test did not start.")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stdin.close()
        process.stdout.close()
        process.terminate()
        process.wait()
