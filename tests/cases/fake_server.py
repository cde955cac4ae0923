"""An OpenAI-compatible server with known delays, in a thread of the test process: what it did is the truth of a test.

Its clock is the client's (``time.perf_counter()``): what the client measured can be held against what happened.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

Counting = Literal["continuous", "token_ids", "final", "finish_chunk", "none"]


@dataclass
class Served:
    """What the server did for one request. writes: when each chunk with tokens was written."""

    received: float
    body: dict[str, Any]
    writes: list[float] = field(default_factory=list)
    num_tokens: int = 0


@dataclass
class FakeServer:
    """ttft, gap: seconds before the first chunk and between chunks. tokens_per_chunk: several tokens in one event.

    counting: how it tells the number of tokens. refuse: the status of request number n, None to serve it.
    break_after: chunks after which request number n loses its connection, None for never. most_fields: refuses requests
    with fields that are not OpenAI's. keep_alive: False closes after each answer. metrics: the text of /metrics.
    """

    ttft: float = 0.02
    gap: float = 0.005
    tokens_per_chunk: int = 1
    counting: Counting = "continuous"
    refuse: Callable[[int], int | None] = lambda number: None
    break_after: Callable[[int], int | None] = lambda number: None
    is_strict: bool = False
    keep_alive: bool = True
    key: str | None = None
    models: tuple[str, ...] = ("fake",)
    tokens_per_word: int = 1
    overhead_tokens: int = 0
    cached_tokens: int | None = None
    metrics: Callable[[], str] | None = None
    separator: bytes = b"\n\n"
    url: str = ""
    served: list[Served] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    num_connections: int = 0
    num_open: int = 0
    most_open: int = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while await self._one(reader, writer) and self.keep_alive:
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        received = time.perf_counter()
        method, path, _ = head.split(" ", 2)
        headers = {line.partition(": ")[0].lower(): line.partition(": ")[2] for line in head.split("\r\n")[1:]}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.paths.append(path)
        if self.key is not None and headers.get("authorization") != f"Bearer {self.key}":
            return self._answer(writer, 401, {"error": "Unauthorized"})
        if path == "/v1/models":
            return self._answer(writer, 200, {"data": [{"id": name, "max_model_len": 4096} for name in self.models]})
        if path == "/metrics" and self.metrics is not None:
            return self._answer(writer, 200, self.metrics())
        if method == "POST" and path in ("/v1/completions", "/v1/chat/completions"):
            return await self._complete(Served(received, json.loads(body)), path.endswith("chat/completions"), writer)
        return self._answer(writer, 404, {"detail": "Not Found"})

    def _answer(self, writer: asyncio.StreamWriter, status: int, document: Any) -> bool:
        text = document if isinstance(document, str) else json.dumps(document)
        data = text.encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        return True

    async def _complete(self, request: Served, is_chat: bool, writer: asyncio.StreamWriter) -> bool:
        self.served.append(request)
        number = len(self.served) - 1
        body = request.body
        if body["model"] not in self.models:
            return self._answer(writer, 404, {"error": {"message": f"The model {body['model']} does not exist."}})
        unknown = {"ignore_eos"} & body.keys() or {"continuous_usage_stats"} & body["stream_options"].keys()
        if self.is_strict and unknown:
            return self._answer(writer, 400, {"error": {"message": f"unknown field {sorted(unknown)}"}})
        status = self.refuse(number)
        if status is not None:
            return self._answer(writer, status, {"error": {"message": "The engine is busy."}})
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            return await self._stream(request, is_chat, number, writer)
        finally:
            self.num_open -= 1

    async def _stream(self, request: Served, is_chat: bool, number: int, writer: asyncio.StreamWriter) -> bool:
        body = request.body
        prompt = body["messages"][0]["content"] if is_chat else body["prompt"]
        num_prompt = self.overhead_tokens + self.tokens_per_word * len(prompt.split())
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        wanted, last_break = body["max_tokens"], self.break_after(number)
        await asyncio.sleep(self.ttft)
        if is_chat:
            self._event(writer, [{"index": 0, "delta": {"role": "assistant", "content": ""}}], num_prompt, 0)
        while request.num_tokens < wanted:
            if request.writes:
                await asyncio.sleep(self.gap)
            if last_break is not None and len(request.writes) >= last_break:
                writer.transport.abort()
                return False
            new = min(self.tokens_per_chunk, wanted - request.num_tokens)
            request.num_tokens += new
            request.writes.append(time.perf_counter())
            choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if request.num_tokens == wanted else None}
            choice |= {"delta": {"content": " w" * new}} if is_chat else {"text": " w" * new}
            if self.counting == "token_ids":
                choice["token_ids"] = list(range(new))
            self._event(writer, [choice], num_prompt, request.num_tokens, is_last=request.num_tokens == wanted)
        if self.counting != "none":
            self._event(writer, [], num_prompt, request.num_tokens, is_last=True)
        self._write(writer, b"data: [DONE]" + self.separator)
        writer.write(b"0\r\n\r\n")
        return True

    def _event(
        self, writer: asyncio.StreamWriter, choices: list[Any], num_prompt: int, num_tokens: int, is_last: bool = False
    ) -> None:
        document: dict[str, Any] = {"id": "x", "choices": choices, "usage": None}
        has_usage = {"continuous": True, "finish_chunk": is_last and choices, "none": False}.get(
            self.counting, not choices
        )
        if has_usage:
            document["usage"] = {"prompt_tokens": num_prompt, "completion_tokens": num_tokens}
            if self.cached_tokens is not None:
                document["usage"]["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        self._write(writer, b": keep-alive\n\ndata: " + json.dumps(document).encode() + self.separator)

    def _write(self, writer: asyncio.StreamWriter, event: bytes) -> None:
        """In two HTTP chunks, cut in the middle of the event."""
        for part in (event[: len(event) // 2], event[len(event) // 2 :]):
            writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")


@contextmanager
def running(server: FakeServer) -> Iterator[FakeServer]:
    """The server on a free port, in a thread with an event loop of its own."""
    loop = asyncio.new_event_loop()
    started = threading.Event()

    async def serve() -> None:
        listening = await asyncio.start_server(server.handle, "127.0.0.1", 0, backlog=512)
        server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        stop = asyncio.Event()
        loop.stop_serving = stop.set  # type: ignore[attr-defined]
        started.set()
        async with listening:
            await stop.wait()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop_serving)  # type: ignore[attr-defined]
        thread.join(10)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
