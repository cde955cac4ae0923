"""Other programs, with a limit on their time: they end, with all they started, or are left behind. No torch."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import IO, Any

SECONDS_TO_DIE = 10.0


def outcome_of(command: list[str], seconds: float, output: IO[Any], **options: Any) -> str:
    """How ``command`` ended, such as "exit code 0"; "stopped after ..." where it took more than ``seconds``.

    output: where it and what it started write. One that a hung device keeps from dying is left behind, and said.
    """
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, **options)
    try:
        outcome = f"exit code {process.wait(seconds)}"
    except subprocess.TimeoutExpired:
        outcome = f"stopped after {seconds:.0f} s"
    finally:
        is_dead = end(process)
    return outcome if is_dead else f"{outcome}, and did not die"


def end(process: subprocess.Popen[Any]) -> bool:
    """Kill ``process`` and all it started; False where it is still there ten seconds later."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(SECONDS_TO_DIE)
    except subprocess.TimeoutExpired:
        return False
    return True
