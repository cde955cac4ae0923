"""Reads the files of a model: regular ones, no larger than they can be. EngineError, one sentence, for all others.

Nothing here waits for a pipe that nobody writes to, or reads a device that never ends.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from kvplan_engine.errors import EngineError

LARGEST_JSON_BYTES = 256 * 1024**2
"""More than any config.json, index of weight files or tokenizer.json."""
_DEEPEST = 100
_HALF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


class NotRegular(OSError):
    """Raised for a directory, a pipe, a socket or a device where a file should be."""


def open_regular(path: Path, *, follows_links: bool = True) -> io.FileIO:
    """Open a regular file to read, unbuffered. OSError where there is none, NotRegular where it is something else."""
    # Without O_NONBLOCK, opening a pipe waits for a writer that may never come.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follows_links else os.O_NOFOLLOW)
    file = io.FileIO(os.open(path, flags), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise NotRegular("not a regular file")
    return file


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file to read its bytes. EngineError where there is none, or an OSError while it is read."""
    try:
        with open_regular(path) as raw, io.BufferedReader(raw) as file:
            yield file
    except NotRegular:
        raise EngineError(f"{path} is not a regular file.", hint="copy the model's files there") from None
    except OSError as error:
        raise EngineError(f"{path} cannot be read: {error.strerror or error}.") from None


def check_files(folder: Path, patterns: tuple[str, ...]) -> None:
    """EngineError for what is called like one of these files in ``folder`` and is none, or too large for one.

    For libraries that read them by themselves.
    """
    for path in sorted({each for pattern in patterns for each in folder.glob(pattern)}):
        if path.is_dir():
            continue
        with open_file(path) as file:
            if os.fstat(file.fileno()).st_size > LARGEST_JSON_BYTES:
                raise _too_large(path)


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object. NaN and Infinity are numbers; of equal keys the last one counts.

    EngineError where it is none, is nested too deep, or holds half a character that cannot be written out again.
    """
    with open_file(path) as file:
        # no more than the file has: a read sets aside as many bytes as it asks for
        content = file.read(min(os.fstat(file.fileno()).st_size, LARGEST_JSON_BYTES) + 1)
    if len(content) > LARGEST_JSON_BYTES:
        raise _too_large(path)
    try:
        text = content.decode("utf-8")
        found = json.loads(text)
        problem = None
        if _HALF_A_PAIR.search(text):
            json.dumps(found, ensure_ascii=False).encode("utf-8")
        if text.count("[") + text.count("{") > _DEEPEST and _is_deep(found):
            problem = "it is nested too deep"
    except RecursionError:
        problem = "it is nested too deep"
    except ValueError as error:  # JSONDecodeError, UnicodeError, a number with thousands of digits
        problem = str(error)[:200]
    if problem is not None:
        raise EngineError(f"{path} is not a readable {path.name}: {problem}.") from None
    if not isinstance(found, dict):
        raise EngineError(f"{path} does not hold a JSON object.")
    return found


def _too_large(path: Path) -> EngineError:
    return EngineError(f"{path} is larger than {LARGEST_JSON_BYTES // 1024**2} MiB.", hint="download it again")


def _is_deep(document: Any) -> bool:
    layer = [document]
    for _ in range(_DEEPEST):
        containers = [each for each in layer if isinstance(each, (dict, list))]
        layer = [inner for each in containers for inner in (each.values() if isinstance(each, dict) else each)]
    return any(isinstance(each, (dict, list)) for each in layer)
