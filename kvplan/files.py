"""Reads files that a user names: regular ones, no larger than they can be, as bytes, text or JSON.

Nothing here waits for a pipe that nobody writes to, or reads a device that never ends. What is wrong with a file is
a KvplanError of one sentence that begins with its path; what is wrong with a JSON text is a ValueError of one phrase.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from kvplan.errors import KvplanError
from kvplan.units import MIB

LARGEST_CONFIG_BYTES: Final = 32 * MIB
"""More than any config.json, and little enough to parse at once."""
_DEEPEST: Final = 100
_PASSED_ON: Final = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Descriptors that the shell opened for this process: a pipe among them has a writer (``<(docker logs x)``)."""
_KINDS: Final = (
    (stat.S_ISDIR, "is a directory"),
    (stat.S_ISFIFO, "is a named pipe"),
    (stat.S_ISSOCK, "is a socket"),
    (stat.S_ISCHR, "is a device"),
    (stat.S_ISBLK, "is a device"),
)
_ANY_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


@contextmanager
def open_file(path: Path, *, hint: str | None = None, may_be_piped: bool = False) -> Iterator[BinaryIO]:
    """Open a regular file to read its bytes. may_be_piped: a pipe that the shell passed on will do as well.

    KvplanError where there is none, or an OSError while it is read.
    """
    try:
        # Without O_NONBLOCK, opening a pipe waits for a writer that may never come.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(descriptor).st_mode
            piped = may_be_piped and stat.S_ISFIFO(mode) and str(path).startswith(_PASSED_ON)
            if not piped and not stat.S_ISREG(mode):
                kind = next((words for is_kind, words in _KINDS if is_kind(mode)), "is no file")
                raise KvplanError(f"{path} {kind}, not a regular file.", hint=hint)
            os.set_blocking(descriptor, True)
            with open(descriptor, "rb", closefd=False) as file:
                yield file
        finally:
            os.close(descriptor)
    except FileNotFoundError as error:
        raise KvplanError(f"{path} does not exist.", hint=hint) from error
    except OSError as error:
        raise KvplanError(f"{path} cannot be read: {error.strerror or error}.", hint=hint) from error


def read_bytes(path: Path, most_bytes: int, *, hint: str | None = None, may_be_piped: bool = False) -> bytes:
    """Read the whole file. KvplanError as ``open_file``, and where it has more than ``most_bytes``."""
    with open_file(path, hint=hint, may_be_piped=may_be_piped) as file:
        return _read_stream(file, most_bytes, str(path), hint)


def read_standard_input(most_bytes: int, *, hint: str | None = None) -> bytes:
    """Read standard input to its end. KvplanError where it is closed, or has more than ``most_bytes``."""
    if sys.stdin is None:
        raise KvplanError("Standard input is closed.", hint=hint)
    try:
        return _read_stream(sys.stdin.buffer, most_bytes, "Standard input", hint)
    except OSError as error:
        raise KvplanError(f"Standard input cannot be read: {error.strerror or error}.", hint=hint) from error


def _read_stream(file: BinaryIO, most_bytes: int, where: str, hint: str | None) -> bytes:
    content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise KvplanError(f"{where} is larger than {most_bytes / MIB:.3g} MiB.", hint=hint)
    return content


def read_text(path: Path, most_bytes: int, *, hint: str | None = None) -> str:
    """Read a text in UTF-8, with a byte order mark or without. KvplanError as ``read_bytes``, and for other bytes."""
    try:
        return read_bytes(path, most_bytes, hint=hint).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise KvplanError(f"{path} is not text in UTF-8.", hint=hint) from error


def read_json(path: Path, most_bytes: int, *, hint: str | None = None) -> Any:
    """Read a JSON document. KvplanError as ``read_text``, and for what ``parse_json`` refuses."""
    try:
        return parse_json(read_text(path, most_bytes, hint=hint))
    except ValueError as error:
        raise KvplanError(f"{path} is not valid JSON ({error}).", hint=hint) from error


def parse_json(text: str | bytes, *, unique_keys: bool = False) -> Any:
    """Parse what others wrote. NaN and Infinity are numbers, as configs have them; of equal keys the last one counts.

    ValueError (one phrase) for what is no JSON, is nested too deep, has a number of thousands of digits, or holds half
    a character that cannot be written out again. unique_keys: equal keys are refused too.
    """
    try:
        found = json.loads(text, object_pairs_hook=_with_unique_keys if unique_keys else None)
    except RecursionError as error:
        raise ValueError("too deep") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}, column {error.colno}") from error
    except UnicodeDecodeError as error:
        raise ValueError("not text in UTF-8") from error
    except ValueError as error:
        raise ValueError("a number with thousands of digits" if "digits" in str(error) else str(error)) from error
    written = text if isinstance(text, str) else text.decode(json.detect_encoding(text), errors="replace")
    if written.count("[") + written.count("{") > _DEEPEST and _is_deeper(found, _DEEPEST):
        raise ValueError("too deep")
    if _ANY_SURROGATE.search(written) and not _is_writable(found):
        raise ValueError("half of a surrogate pair in a text")
    return found


def _with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands in it twice")
    return found


def _is_deeper(document: Any, levels: int) -> bool:
    layer = [document]
    for _ in range(levels):
        containers = [each for each in layer if isinstance(each, (dict, list))]
        layer = [inner for each in containers for inner in (each.values() if isinstance(each, dict) else each)]
    return any(isinstance(each, (dict, list)) for each in layer)


def _is_writable(document: Any) -> bool:
    try:
        json.dumps(document, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
