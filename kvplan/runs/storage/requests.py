"""``requests.jsonl`` on disk: a trial's requests are added in one piece, and read however damaged the file is."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, cast

from kvplan.errors import KvplanError
from kvplan.files import parse_json
from kvplan.runs.request_lines import REQUESTS, RequestLine
from kvplan.runs.storage.files import write_all

_LINES_PER_WRITE: Final = 2000
_NUMBERS: Final = tuple(sorted(RequestLine.__required_keys__ - {"trial_id", "error"}))
_LARGEST: Final = sys.float_info.max


def append_requests(directory: Path, lines: Sequence[RequestLine]) -> None:
    """Add the requests of one trial. KvplanError if the disk is full; nothing of them is left then.

    Call it before the trial's row is written: a row that is there has its requests. Those of a trial that is run again
    after a crash replace the earlier ones, which have the same names.
    """
    if not lines:
        return
    path = directory / REQUESTS
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        start = os.fstat(descriptor).st_size
        try:
            if start and os.pread(descriptor, 1, start - 1) != b"\n":  # a torn line ends here
                write_all(descriptor, b"\n")
            for first in range(0, len(lines), _LINES_PER_WRITE):
                write_all(descriptor, _encoded(lines[first : first + _LINES_PER_WRITE]))
            os.fsync(descriptor)
        except OSError as error:
            os.ftruncate(descriptor, start)
            raise _unwritable(path, error) from error
    finally:
        os.close(descriptor)


def _encoded(lines: Iterable[RequestLine]) -> bytes:
    return "".join(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n" for line in lines).encode()


def _unwritable(path: Path, error: OSError) -> KvplanError:
    return KvplanError(f"The record of requests could not be written to {path}: {error.strerror}.", hint="make room")


def read_requests(directory: Path) -> dict[str, list[RequestLine]]:
    """Return the requests by the id of their trial, in the order written. Lines that are no requests are left out."""
    found: dict[str, dict[int, RequestLine]] = {}
    for line in _lines(directory / REQUESTS):
        found.setdefault(line["trial_id"], {})[line["id"]] = line
    return {trial_id: list(lines.values()) for trial_id, lines in found.items()}


def _lines(path: Path) -> Iterator[RequestLine]:
    try:
        with path.open("rb") as file:
            for text in file:
                line = _line(text)
                if line is not None:
                    yield line
    except FileNotFoundError:
        return
    except OSError as error:
        raise KvplanError(f"'{path}' cannot be read: {error.strerror}.", hint="check its permissions") from error


def _line(text: bytes) -> RequestLine | None:
    """A hundred thousand of them are read at once, so what each must be is looked at by hand."""
    try:
        value = parse_json(text)
    except ValueError:
        return None
    is_request = isinstance(value, dict) and value.keys() >= RequestLine.__required_keys__
    if not is_request or type(value["id"]) is not int or not isinstance(value["trial_id"], str):
        return None
    numbers = [value[name] for name in _NUMBERS] + _list(value.get("itl_s"))
    if not all(number is None or _is_finite(number) for number in numbers):
        return None
    is_well_named = value["error"] is None or isinstance(value["error"], str)
    return cast(RequestLine, value) if is_well_named else None


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _is_finite(value: object) -> bool:
    return type(value) in (int, float) and -_LARGEST <= cast(float, value) <= _LARGEST
