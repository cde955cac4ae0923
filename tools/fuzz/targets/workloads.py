"""Workload files of ``kvplan sweep`` and ``kvplan load``: JSON lines, ShareGPT's conversations, traces as CSV.

Faults, beside tracebacks: an error that does not name the file, requests out of range, arrivals that are not finite.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from fuzz.harness import Fault, Target
from fuzz.mutations import deep_json, mutate_bytes, mutate_json, odd_value
from kvplan.errors import KvplanError
from kvplan.workload.files import read_requests
from kvplan.workload.lengths import LONGEST
from kvplan.workload.times import LONGEST_SECONDS

Case = tuple[str, bytes]

_LINES = [{"input_len": 128, "output_len": 64, "arrival_seconds": 0.5}, {"prompt_token_ids": [1, 2], "output_len": 4}]
_TALK = {"conversations": [{"from": "human", "value": "What is it? " * 9}, {"from": "gpt", "value": "It is. " * 9}]}
_TRACES = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:04.03,396,109\n",
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,x\n45,GPT-4,9,0,9,x\n",
    b"arrival_seconds,input_len,output_len\n0.0,128,64\n1.5,96,32\n",
)
_ODD_CELLS = (b"", b"-1", b"1e400", b"nan", b"9" * 5000, b"=1+1", b'"', b"\x00", b"1.5", b"2023-99-99 99:99:99")


@contextmanager
def open_target() -> Iterator[Target[Case]]:
    """The target, with one file that is written anew for each case."""
    with TemporaryDirectory() as folder:
        yield Target(_make_case, lambda case: _try_case(Path(folder), case))


def _make_case(rng: random.Random) -> Case:
    kind = rng.choice(("lines", "list", "talk", "trace", "trace"))
    if rng.random() < 0.03:
        return "w.json", deep_json(rng)
    if kind == "trace":
        content = rng.choice(_TRACES)
        for _ in range(rng.randint(0, 3)):
            cells = content.split(b",")
            cells[rng.randrange(len(cells))] = rng.choice(_ODD_CELLS)
            content = b",".join(cells)
        return rng.choice(("w.csv", "w.csv", "w.json")), mutate_bytes(content, rng) if rng.random() < 0.5 else content
    records = [mutate_json(record, rng) if rng.random() < 0.5 else record for record in _LINES]
    if kind == "talk":
        records = [mutate_json(_TALK, rng), _TALK]
    if rng.random() < 0.1:
        records.append(odd_value(rng))
    text = json.dumps(records) if kind != "lines" else "\n".join(map(json.dumps, records))
    content = text.encode()
    return rng.choice(("w.jsonl", "w.json")), mutate_bytes(content, rng) if rng.random() < 0.3 else content


def _try_case(folder: Path, case: Case) -> str:
    name, content = case
    path = folder / name
    path.write_bytes(content)
    try:
        requests = list(read_requests(path))
    except KvplanError as error:
        if str(path) not in error.message or len(error.message) > 1000:
            raise Fault(f"what is this about: {error.message[:300]}") from error
        return "refused"
    for request in requests:
        seconds = request.arrival_seconds or 0.0
        if not (1 <= request.num_prompt_tokens <= LONGEST and 1 <= request.num_output_tokens <= LONGEST):
            raise Fault(f"out of range: {request}")
        if not math.isfinite(seconds) or not 0 <= seconds <= LONGEST_SECONDS:
            raise Fault(f"never: {request}")
    return "read"
