"""What ``kvplan top`` and ``kvplan load`` are told by a server: pages of metrics, settings, models and streams.

A case is what each path of a server answers, byte by byte with its head. It goes through a real socket, twice for
``top`` (rates need two readings) and once for a request of ``load``. Faults, beside tracebacks: a picture with orders
to the terminal, JSON with a NaN, room below zero, a served request of more tokens than were asked for.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from typing import Any

from fuzz.harness import Fault, Target
from fuzz.mutations import deep_json, mutate_bytes, mutate_json, odd_value
from kvplan.load.client.body import RequestForm
from kvplan.load.client.connection import Client
from kvplan.load.client.record import RequestRecord
from kvplan.load.observed.figures import MeasuredRun, client_figures
from kvplan.metrics.http import ServerAddress
from kvplan.metrics.page import ENGINES, MetricNames
from kvplan.top.snapshot import make_snapshot, top_document
from kvplan.top.view import screen
from kvplan.top.watch import ServerWatch

Case = Mapping[str, bytes]

_ASKED_TOKENS = 4
_ORDERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_ODD_FIGURES = (
    "NaN", "+Inf", "-Inf", "-1", "1e300", "9" * 400, "0x10", "", "1 2 3", "1e-320", "\x1b[2J", "1_0", "-0.0",
)  # fmt: skip
_ODD_NAMES = ("meta-llama/Llama-3.1-8B", "\x1b]0;x\x07", "a" * 3000, "\u202e", "/dev", '\\n\\"', "")
_SERVER_INFO = {
    "version": "0.12.0", "model": {"device": "cpu", "dtype": "float32"}, "memory": {"device_total_bytes": 2**30},
    "vllm_config": {"scheduler_config": {"max_num_seqs": 256, "max_num_batched_tokens": 8192}},
    "max_model_len": 4096,
}  # fmt: skip
_MODELS = {"object": "list", "data": [{"id": "gpt2", "root": "gpt2", "max_model_len": 1024}]}
_SLOTS = [{"id": 0, "n_ctx": 4096, "n_prompt_tokens": 30, "is_processing": True}, {"id": 1, "n_ctx": 4096}]
_ITERATIONS = [{
    "numActiveRequests": 3, "numQueuedRequests": 1, "maxNumActiveRequests": 8,
    "kvCacheStats": {"maxNumBlocks": 100, "usedNumBlocks": 40, "tokensPerBlock": 32, "cacheHitRate": 0.5},
    "inflightBatchingStats": {"numPausedRequests": 0},
}]  # fmt: skip


@contextmanager
def open_target() -> Iterator[Target[Case]]:
    """The target, with a server in a thread that answers as the case at hand says."""
    with _serving() as server:
        yield Target(_make_case, server.try_case)


def _make_case(rng: random.Random) -> Case:
    case = {"/metrics": _answer(_page(rng), rng), "/v1/completions": _answer(_stream(rng), rng)}
    for path, document in (
        ("/server_info?config_format=json", _SERVER_INFO),
        ("/v1/models", _MODELS),
        ("/slots", _SLOTS),
        ("/prometheus/metrics", _ITERATIONS),
    ):
        case[path] = _answer(_document(document, rng), rng)
    return case


def _document(document: Any, rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.03:
        return deep_json(rng)
    if kind < 0.1:
        return b'{"max_num_seqs": ' + b"9" * rng.choice((20, 400, 5000)) + b"}"
    changed = mutate_json(document, rng) if kind < 0.7 else document
    text = json.dumps(changed).encode()
    return mutate_bytes(text, rng) if kind > 0.9 else text


def _page(rng: random.Random) -> bytes:
    """A page of one of the engines, with lines doubled, damaged or made up; sometimes TensorRT-LLM's JSON."""
    if rng.random() < 0.1:
        return _document(_ITERATIONS, rng)
    names = rng.choice(ENGINES)
    lines = list(_lines(names, rng))
    for _ in range(rng.randint(0, 6)):
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
    page = "\n".join(lines).encode("utf-8", "surrogatepass")
    if rng.random() < 0.02:
        page += b"\n" + lines[0].partition("{")[0].encode() + b'{engine="%d"} 1' * 30_000
    return mutate_bytes(page, rng) if rng.random() < 0.3 else page


def _lines(names: MetricNames, rng: random.Random) -> Iterator[str]:
    prefix = rng.choice(names.prefixes)
    engines = [str(number) for number in range(rng.choice((1, 1, 2, 8)))]
    for field in fields(names):
        found = getattr(names, field.name)
        if field.name in ("engine", "prefixes", "prefix_blocks") or not found or rng.random() < 0.1:
            continue
        name = prefix + rng.choice(found)
        for engine in engines:
            if "time" in field.name or field.name in ("ttft", "itl", "tpot", "e2e_latency", "iteration_tokens"):
                yield from _histogram(name, engine, rng)
            else:
                yield f"{name}{_labels(engine, rng)} {_figure(rng)}"


def _histogram(name: str, engine: str, rng: random.Random) -> Iterator[str]:
    seen = 0
    for bound in ("0.01", "0.1", "1", rng.choice(("+Inf", "+Inf", "NaN", "-Inf", "x", "1e400"))):
        seen += rng.randrange(10)
        yield f'{name}_bucket{{engine="{engine}",le="{bound}"}} {seen if rng.random() < 0.97 else _figure(rng)}'
    yield f'{name}_sum{{engine="{engine}"}} {_figure(rng)}'


def _labels(engine: str, rng: random.Random) -> str:
    name = "gpt2" if rng.random() < 0.7 else rng.choice(_ODD_NAMES)
    labels = [f'engine="{engine}"', f'model_name="{name}"']
    if rng.random() < 0.2:
        labels += ['block_size="16"', f'num_gpu_blocks="{_figure(rng)}"', 'cache_dtype="auto"']
    if rng.random() < 0.05:
        labels.append("a" * rng.choice((100, 100_000)))
    rng.shuffle(labels)
    return "{" + ",".join(labels) + "}"


def _figure(rng: random.Random) -> str:
    return rng.choice(_ODD_FIGURES) if rng.random() < 0.1 else str(rng.choice((0, 0.5, 1, 3, 16, 100, 4096, 1e6)))


def _stream(rng: random.Random) -> bytes:
    """The events of an answer of four tokens, some of them changed."""
    events: list[bytes] = []
    for number in range(1, _ASKED_TOKENS + 1):
        choice = {"index": 0, "text": " w", "finish_reason": "length" if number == _ASKED_TOKENS else None}
        chunk: Any = {"choices": [choice], "usage": {"prompt_tokens": 8, "completion_tokens": number}}
        if rng.random() < 0.2:
            chunk = mutate_json(chunk, rng)
        if rng.random() < 0.02:
            chunk = {"error": odd_value(rng)}
        events.append(deep_json(rng) if rng.random() < 0.01 else json.dumps(chunk).encode())
    lines = b"".join(b"data: " + event + rng.choice((b"\n\n", b"\r\n\r\n", b"\n")) for event in (*events, b"[DONE]"))
    return mutate_bytes(lines, rng) if rng.random() < 0.2 else lines


def _answer(body: bytes, rng: random.Random) -> bytes:
    """The body with a head, in a few ways that HTTP knows and in some that it does not."""
    status = 200 if rng.random() < 0.9 else rng.choice((404, 500, 100, 204, 302, 401))
    start = b"HTTP/1.1 %d X\r\n" % status
    kind = rng.random()
    if kind < 0.7:
        whole = start + b"Content-Length: %d\r\n\r\n" % len(body) + body
    elif kind < 0.82:
        middle = len(body) // 2
        chunks = b"".join(b"%x\r\n" % len(part) + part + b"\r\n" for part in (body[:middle], body[middle:]) if part)
        whole = start + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    elif kind < 0.93:
        whole = start + b"\r\n" + body
    else:
        length = rng.choice((b"100000000000000", b"-1", b"x", b"9" * 5000, b"1", b"0"))
        whole = start + b"Content-Length: " + length + b"\r\nX: \x1b[2J\r\n" * rng.choice((1, 200)) + b"\r\n" + body
    return mutate_bytes(whole, rng) if rng.random() < 0.1 else whole


class _Server:
    """Answers each path as the case says, and closes the connection after it."""

    def __init__(self, port: int) -> None:
        self.answers: Case = {}
        self._address = ServerAddress.parse(f"127.0.0.1:{port}")

    def try_case(self, case: Case) -> str:
        self.answers = case
        return f"{self._try_top()}, request {self._try_load()}"

    def _try_top(self) -> str:
        watch = ServerWatch(self._address.url, interval_seconds=1.0, window_seconds=30.0)
        try:
            watch.read_once()
            watch.read_once()
        finally:
            watch.close()
        snapshot = make_snapshot([watch.state], contexts=(1000,))
        for width, height in ((160, None), (40, 6)):
            picture = screen(snapshot, width=width, height=height, title="top").plain
            if _ORDERS.search(picture):
                raise Fault(f"orders to the terminal: {picture!r}")
        json.dumps(top_document(snapshot), allow_nan=False)
        for row in snapshot.rows:
            for room in row.rooms:
                if room.by_kv < 0 or room.sequences < 0 or room.capacity < 0:
                    raise Fault(f"no such room: {room}")
        return "read" if watch.state.is_up else "refused"

    def _try_load(self) -> str:
        now = time.perf_counter()
        record = RequestRecord(0, now, now, 8, _ASKED_TOKENS)
        asyncio.run(self._send(record))
        row = client_figures(MeasuredRun((record,), is_open=False), {})
        json.dumps(row, allow_nan=False)
        if (row["total_output_tokens"] or 0) > _ASKED_TOKENS:
            raise Fault(f"more tokens than were asked for: {row['total_output_tokens']}")
        return "served" if record.is_served else "failed"

    async def _send(self, record: RequestRecord) -> None:
        form = RequestForm(self._address, "completions", "gpt2")
        client = Client(self._address, timeout_seconds=2.0)
        try:
            await client.send(record, form.request("w " * 8, _ASKED_TOKENS, 0))
        finally:
            client.close()

    def serve(self, connection: socket.socket) -> None:
        with suppress(OSError, ValueError, IndexError), connection:
            connection.settimeout(5.0)
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(65536) or b"\r\n\r\n"
            path = head.split(b" ")[1].decode()
            connection.sendall(self.answers.get(path, b"HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n"))
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):  # the client's request may still be on its way
                pass


@contextmanager
def _serving() -> Iterator[_Server]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        server = _Server(listening.getsockname()[1])

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection = listening.accept()[0]
                    threading.Thread(target=server.serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
