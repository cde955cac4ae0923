"""A start-up log as it lies in a file or comes through a pipe."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from kvplan.errors import KvplanError, UsageError
from kvplan.explaining.startup_log import StartupLog, parse_startup_log
from kvplan.files import read_bytes, read_standard_input
from kvplan.pasted.shell import is_serve_line, shell_words
from kvplan.units import MIB

_LARGEST_BYTES: Final = 200 * MIB
_ENDS_BYTES: Final = MIB
"""Of a longer log: the start, and how it ended. Between them stand requests that were served."""
_HINT: Final = "pass a log file, or the part of one that holds the start"


class ReadLog(NamedTuple):
    """What a log says, and a note where only its ends were read."""

    log: StartupLog
    note: str | None


def read_log(path: Path) -> ReadLog:
    """Read a log; ``-`` is standard input, and a pipe that the shell passes on is read to its end.

    KvplanError where it cannot be read, or is no start-up log.
    """
    text = str(path)
    if " " in text and not os.path.exists(text) and is_serve_line(shell_words(text)):
        raise UsageError("That is a command, not the log of a start.", hint=f'kvplan estimate "{text}" sizes it')
    if text == "-":
        return parse_log(read_standard_input(_LARGEST_BYTES, hint=_HINT), "Standard input")
    return parse_log(read_bytes(path, _LARGEST_BYTES, hint=_HINT, may_be_piped=True), text)


def parse_log(content: bytes, name: str) -> ReadLog:
    """Parse a log, whatever its bytes are. ``name``: what messages call it. KvplanError where it is no start-up log."""
    note = None
    if len(content) > 2 * _ENDS_BYTES:
        note = f"Of {name} the first and the last {_ENDS_BYTES // MIB} MiB were read."
        content = content[:_ENDS_BYTES] + b"\n" + content[-_ENDS_BYTES:]
    log = parse_startup_log(content.decode("utf-8", errors="replace"))
    if not log.has_figures:
        raise KvplanError(
            f"{name} does not look like a start-up log of vLLM or SGLang: it says nothing about memory or KV cache.",
            hint="pass the log of such a server's start; kvplan estimate reads a command alone",
        )
    return ReadLog(log, note)
