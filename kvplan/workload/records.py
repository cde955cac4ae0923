"""Records of a request file, one after the other, with the place at which each stands. Nothing is held but one.

What a file is follows from its first character: ``[`` begins a JSON list, ``{`` JSON lines (or one JSON document, whose
longest list holds the records), and anything else is CSV with a header.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvplan.errors import KvplanError
from kvplan.files import open_file
from kvplan.units import MIB

HINT: Final = (
    "a trace (Mooncake, Bailian, Azure, BurstGPT, ServeGen, AIPerf), ShareGPT, an OpenAI batch, prompts as "
    "vllm bench serve takes them, or CSV with columns input_len,output_len[,arrival_s]; docs/workloads.md has all"
)
_LONGEST_RECORD: Final = 64 * MIB
_LARGEST_DOCUMENT: Final = 512 * MIB
"""Of one JSON document that is no list and no lines, which has to be read whole."""
_CHUNK: Final = MIB
_MOST_SHOWN: Final = 200
_LONGEST_CELL: Final = 16 * MIB
_BINARY: Final = ((b"PAR1", "Parquet"), (b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"PK\x03\x04", "zip"))
_SPACE: Final = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Record:
    """place: such as ``Line 3``."""

    place: str
    fields: dict[str, Any]


def malformed(path: Path, place: str, reason: str) -> KvplanError:
    """The error for what stands at ``place``, such as ``Line 3``."""
    return KvplanError(f"{place} of the workload file {path} is malformed: {reason[:_MOST_SHOWN]}.", hint=HINT)


def records_of(path: Path) -> Iterator[Record]:
    """Every record. KvplanError names the file and the place."""
    try:
        with open_file(path) as file:
            _refuse_binary(path, file.read(4))
            file.seek(0)
            text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
            try:
                yield from _records(path, text)
            finally:
                text.detach()
    except UnicodeDecodeError as error:
        raise KvplanError(f"The workload file {path} is not text in UTF-8.", hint=HINT) from error
    except KvplanError as error:
        if "workload file" in error.message:
            raise
        raise KvplanError(f"The workload file cannot be read: {error.message}", hint=error.hint or HINT) from error


def _refuse_binary(path: Path, start: bytes) -> None:
    for magic, name in _BINARY:
        if start.startswith(magic):
            raise KvplanError(
                f"The workload file {path} is {name}, not text.",
                hint="unpack it, or write its rows as JSON lines or CSV",
            )


def _records(path: Path, text: io.TextIOWrapper) -> Iterator[Record]:
    first = _first_character(text)
    if first == "[":
        yield from _from_list(path, text)
    elif first == "{":
        yield from _from_lines(path, text)
    elif first:
        yield from _from_csv(path, text)


def _first_character(text: io.TextIOWrapper) -> str:
    """The first one that is no space, and back to the start."""
    found = ""
    while not found and (chunk := text.read(4096)):
        found = chunk.lstrip(_SPACE)[:1]
    text.seek(0)
    return found


# ---- CSV


def _from_csv(path: Path, text: io.TextIOWrapper) -> Iterator[Record]:
    csv.field_size_limit(_LONGEST_CELL)
    header, above = text.readline(_LONGEST_CELL), 1
    while header and not header.strip():
        header, above = text.readline(_LONGEST_CELL), above + 1
    delimiter = max(",;\t", key=header.count)
    names = [name.strip() for name in next(csv.reader([header], delimiter=delimiter))]
    if not any(name[:1].isalpha() for name in names):
        raise KvplanError(
            f"The workload file {path} has no header: its first line is {header.strip()[:_MOST_SHOWN]!r}.",
            hint="name the columns in the first line, such as input_len,output_len,arrival_s",
        )
    reader = csv.reader(text, delimiter=delimiter)
    try:
        for cells in reader:
            if not cells:
                continue
            place = f"Line {reader.line_num + above}"
            if len(cells) != len(names):
                raise malformed(path, place, f"it has {len(cells)} cells, and the header {len(names)}")
            yield Record(place, dict(zip(names, cells, strict=True)))
    except csv.Error as error:
        raise malformed(path, f"Line {reader.line_num + above + 1}", str(error)) from error


# ---- JSON


def _from_lines(path: Path, text: io.TextIOWrapper) -> Iterator[Record]:
    number = 0
    while line := text.readline(_LONGEST_RECORD):
        number += 1
        if not line.strip():
            continue
        place = f"Line {number}"
        if len(line) >= _LONGEST_RECORD:
            raise malformed(path, place, "it is longer than 64 MiB")
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            # One document over several lines begins like a torn line.
            documents = _documents(path, text) if number == 1 else None
            if documents is None:
                raise malformed(path, place, _reason(error)) from error
            yield from documents
            return
        yield from _checked(path, place, fields)


def _documents(path: Path, text: io.TextIOWrapper) -> Iterator[Record] | None:
    """Records of JSON objects that span lines; None where the text is something else."""
    text.seek(0)
    whole = text.read(_LARGEST_DOCUMENT + 1)
    if len(whole) > _LARGEST_DOCUMENT:
        return None
    decoder, place, found = json.JSONDecoder(), 0, []
    try:
        while place < len(whole):
            place = _skip(whole, place, _SPACE)
            if place < len(whole):
                fields, place = decoder.raw_decode(whole, place)
                found.append(fields)
    except (ValueError, RecursionError):
        return None
    return (
        record for number, fields in enumerate(found, start=1) for record in _checked(path, f"Object {number}", fields)
    )


def _checked(path: Path, place: str, fields: Any) -> Iterator[Record]:
    """A record, or those in the list of an object that holds nothing else of requests."""
    if not isinstance(fields, dict):
        raise malformed(path, place, "it is no JSON object")
    inner = next((fields[name] for name in ("data", "entries", "rows") if _are_records(fields.get(name))), None)
    if inner is None:
        yield Record(place, fields)
        return
    for number, entry in enumerate(inner, start=1):
        if not isinstance(entry, dict):
            raise malformed(path, f"Entry {number}", "it is no JSON object")
        yield Record(f"Entry {number}", entry)


def _are_records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _from_list(path: Path, text: io.TextIOWrapper) -> Iterator[Record]:
    """Entries of one JSON list, of which no more is held than the one that is read."""
    buffer = _Window(text)
    buffer.skip_to("[")
    decoder, number = json.JSONDecoder(), 0
    while buffer.next_character(_SPACE + ",") not in ("]", ""):
        number += 1
        entry = _next_entry(path, decoder, buffer, number)
        if not isinstance(entry, dict):
            raise malformed(path, f"Entry {number}", "it is no JSON object")
        yield Record(f"Entry {number}", entry)
    if buffer.next_character(_SPACE) != "]":
        raise KvplanError(f"The workload file {path} is malformed: its list has no end.", hint=HINT)


def _next_entry(path: Path, decoder: json.JSONDecoder, buffer: _Window, number: int) -> Any:
    while True:
        try:
            entry, buffer.place = decoder.raw_decode(buffer.text, buffer.place)
            return entry
        except RecursionError as error:
            reason = "it is nested too deeply"
            raise KvplanError(f"The workload file {path} is malformed: {reason}.", hint=HINT) from error
        except ValueError as error:
            too_long = len(buffer.text) - buffer.place > _LONGEST_RECORD
            if too_long or not buffer.read_more():
                reason = "it is longer than 64 MiB" if too_long else _reason(error)
                raise malformed(path, f"Entry {number}", reason) from error


class _Window:
    """The part of a text that is looked at. ``place``: where in ``text``."""

    def __init__(self, file: io.TextIOWrapper) -> None:
        self._read: Callable[[int], str] = file.read
        self.text, self.place = "", 0

    def read_more(self) -> bool:
        """Read as much again as is left, at least a chunk; False at the end of the file."""
        left = self.text[self.place :]
        more = self._read(max(_CHUNK, len(left)))
        self.text, self.place = left + more, 0
        return bool(more)

    def next_character(self, skipped: str) -> str:
        """The first one that is not skipped; ``place`` is there. Empty at the end."""
        while True:
            self.place = _skip(self.text, self.place, skipped)
            if self.place < len(self.text):
                return self.text[self.place]
            if not self.read_more():
                return ""

    def skip_to(self, character: str) -> None:
        assert self.next_character(_SPACE) == character
        self.place += 1


def _skip(text: str, place: int, skipped: str) -> int:
    while place < len(text) and text[place] in skipped:
        place += 1
    return place


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        if not error.doc[error.pos :].strip() or error.msg.startswith("Unterminated"):
            return "its JSON breaks off"
        return f"{error.msg.removesuffix(' at')} at column {error.colno}"
    return "it has a number of thousands of digits" if "digits" in str(error) else str(error)
