"""Requests from a file: our own JSON lines, ShareGPT-style conversations, and traces as CSV."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from kvplan.errors import KvplanError
from kvplan.files import read_text
from kvplan.units import GIB
from kvplan.workload.lengths import LONGEST

MOST_FILE_REQUESTS: Final = 1000
"""A file is used as a whole unless it is longer."""
# Columns of the traces people publish: (arrival, prompt tokens, output tokens).
# Azure LLM inference trace 2023/2024: TIMESTAMP, ContextTokens, GeneratedTokens. BurstGPT: Timestamp (seconds),
# Request tokens, Response tokens.
_TRACE_COLUMNS: Final = (
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    ("Timestamp", "Request tokens", "Response tokens"),
    ("arrival_seconds", "input_len", "output_len"),
)
_TIMESTAMP: Final = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(?:Z|[+-]\d\d:?\d\d)?")
LONGEST_SECONDS: Final = 1e9
"""Between the first request and the last: 30 years."""
_MOST_BYTES: Final = 4 * GIB
"""ShareGPT's conversations are 0.7 GB."""
_MOST_SHOWN: Final = 200
_CHARACTERS_PER_TOKEN: Final = 4  # English text in byte-pair tokens; only for conversations without token counts
_HINT: Final = (
    'JSON lines like {"input_len": 128, "output_len": 64}, a ShareGPT JSON file, or a trace CSV '
    "(Azure or BurstGPT columns, or arrival_seconds,input_len,output_len)"
)


@dataclass(frozen=True, slots=True)
class FileRequest:
    """One request of a file. ``arrival_seconds`` is None if the file has no times."""

    num_prompt_tokens: int
    num_output_tokens: int
    arrival_seconds: float | None = None


def read_workload_file(path: Path, most_requests: int) -> list[FileRequest]:
    """The first ``most_requests`` usable requests of the file. KvplanError names the file and the place."""
    try:
        text = read_text(path, _MOST_BYTES)
    except KvplanError as error:
        raise KvplanError(f"The workload file cannot be read: {error.message}", hint=_HINT) from error
    requests = _from_csv(path, text) if path.suffix.lower() == ".csv" else _from_json(path, text)
    if not requests:
        raise KvplanError(f"The workload file {path} contains no request.", hint=_HINT)
    return _starting_at_zero(path, requests[:most_requests])


def _starting_at_zero(path: Path, requests: list[FileRequest]) -> list[FileRequest]:
    known = [request.arrival_seconds for request in requests if request.arrival_seconds is not None]
    if len(known) < len(requests):
        return [FileRequest(request.num_prompt_tokens, request.num_output_tokens) for request in requests]
    first = min(known)
    if max(known) - first > LONGEST_SECONDS:
        raise KvplanError(
            f"The requests of the workload file {path} come over more than {LONGEST_SECONDS:,.0f} seconds.",
            hint="arrivals are in seconds, or dates with times",
        )
    return [
        FileRequest(request.num_prompt_tokens, request.num_output_tokens, (request.arrival_seconds or 0.0) - first)
        for request in requests
    ]


def _from_csv(path: Path, text: str) -> list[FileRequest]:
    reader = csv.DictReader(text.splitlines())
    try:
        return _from_trace(path, reader)
    except (TypeError, ValueError, OverflowError, csv.Error) as error:
        number = reader.line_num + isinstance(error, csv.Error)  # such a line is not counted yet
        raise KvplanError(f"Line {number} of the workload file {path} is malformed.", hint=_HINT) from error


def _from_trace(path: Path, reader: csv.DictReader[str]) -> list[FileRequest]:
    names = set(reader.fieldnames or ())
    columns = next((columns for columns in _TRACE_COLUMNS if names.issuperset(columns)), None)
    if columns is None:
        found = ", ".join(map(str, reader.fieldnames or ("none",)))[:_MOST_SHOWN]
        raise KvplanError(f"Unknown columns in the workload file {path}: {found}.", hint=_HINT)
    return [request for record in reader if (request := _from_columns(record, columns)) is not None]


def _from_columns(record: Mapping[str, str], columns: tuple[str, str, str]) -> FileRequest | None:
    """None for a failed request: traces keep these as rows without an answer."""
    prompt, output = int(record[columns[1]]), int(record[columns[2]])
    arrival = _seconds(record[columns[0]])
    return FileRequest(_length(prompt), _length(output), arrival) if prompt > 0 and output > 0 else None


def _length(value: Any) -> int:
    """A number of tokens. ValueError where it is out of range."""
    length = int(value)
    if not 1 <= length <= LONGEST:
        raise ValueError(f"input_len and output_len must be from 1 to {LONGEST:,}")
    return length


def _finite(seconds: float) -> float:
    if not math.isfinite(seconds):
        raise ValueError("arrival_seconds must be finite")
    return seconds


def _seconds(text: str) -> float:
    """Seconds as a number, or a date and time with up to seven fractional digits and an optional time zone."""
    try:
        number = float(text)
    except ValueError:
        match = _TIMESTAMP.fullmatch(text.strip())
        if match is None:
            raise
        # Before Python 3.11 datetime reads only three or six fractional digits, and Azure writes seven.
        return datetime.fromisoformat(match[1]).replace(tzinfo=timezone.utc).timestamp() + float(f"0{match[2] or '.0'}")
    return _finite(number)


def _from_json(path: Path, text: str) -> list[FileRequest]:
    is_list = text.lstrip().startswith("[")
    try:
        entries = json.loads(text) if is_list else text.splitlines()
    except (ValueError, RecursionError) as error:
        raise KvplanError(f"The workload file {path} is malformed: {_reason(error)}.", hint=_HINT) from error
    requests = []
    for number, entry in enumerate(entries, start=1):
        if not is_list and not entry.strip():
            continue
        try:
            requests.append(_from_record(entry if is_list else json.loads(entry)))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            place = f"{'Entry' if is_list else 'Line'} {number} of the workload file {path}"
            raise KvplanError(f"{place} is malformed: {_reason(error)}.", hint=_HINT) from error
    return [request for request in requests if request is not None]


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return str(error)[:_MOST_SHOWN]


def _from_record(record: Any) -> FileRequest | None:
    if not isinstance(record, dict):
        raise ValueError("it is no JSON object")
    if "conversations" in record:
        return _from_conversation(record["conversations"])
    missing = [name for name in ("input_len", "output_len") if name not in record]
    if "prompt_token_ids" in record and "input_len" in missing:
        missing.remove("input_len")
    if missing:
        raise ValueError(f"it has no '{missing[0]}', only {', '.join(record) or 'nothing'}")
    prompt = len(record["prompt_token_ids"]) if "prompt_token_ids" in record else _length(record["input_len"])
    arrival = record.get("arrival_seconds")
    seconds = None if arrival is None else _finite(float(arrival))
    return FileRequest(_length(prompt), _length(record["output_len"]), seconds)


def _from_conversation(turns: list[dict[str, str]]) -> FileRequest | None:
    """The first question and answer; lengths are estimated from characters, because there is no tokenizer here."""
    if len(turns) < 2:
        return None
    prompt, output = (len(turn["value"]) // _CHARACTERS_PER_TOKEN for turn in turns[:2])
    return FileRequest(prompt, output) if prompt > 0 and output > 0 else None
