"""Requests from a file: our own JSON lines, ShareGPT-style conversations, and traces as CSV."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from kvplan.errors import KvplanError

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
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise KvplanError(f"The workload file {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise KvplanError(f"The workload file {path} is not UTF-8 text.", hint=_HINT) from error
    requests = _from_csv(path, text) if path.suffix.lower() == ".csv" else _from_json(path, text)
    if not requests:
        raise KvplanError(f"The workload file {path} contains no request.", hint=_HINT)
    return _starting_at_zero(requests[:most_requests])


def _starting_at_zero(requests: list[FileRequest]) -> list[FileRequest]:
    known = [request.arrival_seconds for request in requests if request.arrival_seconds is not None]
    if len(known) < len(requests):
        return [FileRequest(request.num_prompt_tokens, request.num_output_tokens) for request in requests]
    first = min(known)
    return [
        FileRequest(request.num_prompt_tokens, request.num_output_tokens, (request.arrival_seconds or 0.0) - first)
        for request in requests
    ]


def _from_csv(path: Path, text: str) -> list[FileRequest]:
    reader = csv.DictReader(text.splitlines())
    names = set(reader.fieldnames or ())
    columns = next((columns for columns in _TRACE_COLUMNS if names.issuperset(columns)), None)
    if columns is None:
        raise KvplanError(f"Unknown columns in the workload file {path}.", hint=_HINT)
    requests = []
    for number, record in enumerate(reader, start=2):
        try:
            prompt, output = int(record[columns[1]]), int(record[columns[2]])
            arrival = _seconds(record[columns[0]])
        except (TypeError, ValueError) as error:
            raise KvplanError(f"Line {number} of the workload file {path} is malformed.", hint=_HINT) from error
        if prompt > 0 and output > 0:  # traces keep failed requests as rows without an answer
            requests.append(FileRequest(prompt, output, arrival))
    return requests


def _seconds(text: str) -> float:
    """Seconds as a number, or a date and time with up to seven fractional digits and an optional time zone."""
    try:
        return float(text)
    except ValueError:
        match = _TIMESTAMP.fullmatch(text.strip())
        if match is None:
            raise
        # Before Python 3.11 datetime reads only three or six fractional digits, and Azure writes seven.
        return datetime.fromisoformat(match[1]).replace(tzinfo=timezone.utc).timestamp() + float(f"0{match[2] or '.0'}")


def _from_json(path: Path, text: str) -> list[FileRequest]:
    try:
        records: Iterable[Any] = json.loads(text) if text.lstrip().startswith("[") else _json_lines(text)
        return [request for record in records if (request := _from_record(record)) is not None]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise KvplanError(f"The workload file {path} is malformed: {error}.", hint=_HINT) from error


def _json_lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _from_record(record: dict[str, Any]) -> FileRequest | None:
    if "conversations" in record:
        return _from_conversation(record["conversations"])
    prompt = len(record["prompt_token_ids"]) if "prompt_token_ids" in record else int(record["input_len"])
    arrival = record.get("arrival_seconds")
    if prompt < 1 or int(record["output_len"]) < 1:
        raise ValueError("input_len and output_len must be at least 1")
    return FileRequest(prompt, int(record["output_len"]), None if arrival is None else float(arrival))


def _from_conversation(turns: list[dict[str, str]]) -> FileRequest | None:
    """The first question and answer; lengths are estimated from characters, because there is no tokenizer here."""
    if len(turns) < 2:
        return None
    prompt, output = (len(turn["value"]) // _CHARACTERS_PER_TOKEN for turn in turns[:2])
    return FileRequest(prompt, output) if prompt > 0 and output > 0 else None
