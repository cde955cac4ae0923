"""One HTTP request and its answer, over ASGI."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from kvplan_engine.server.http.connection import EXTENSION, UNFRAMED, Outlet, UnframedAnswer
from kvplan_engine.server.openai.errors import ApiError, Headers

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# A client that began to send a body and stopped.
_BODY_SECONDS = 60.0
_JSON = (b"content-type", b"application/json")
_EVENT_STREAM: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ClientGone(Exception):
    """The client closed its connection: nobody waits for an answer."""


class Exchange:
    """arrival_seconds: of the monotonic clock. status: of the answer, 0 before it begins."""

    __slots__ = (
        "_asgi_send",
        "_headers",
        "_outlet",
        "_query",
        "_unframed",
        "arrival_seconds",
        "extra_headers",
        "method",
        "path",
        "receive",
        "request_id",
        "status",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.arrival_seconds = time.perf_counter()
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._query: bytes = scope["query_string"]
        self.receive = receive
        self.status = 0
        self.request_id = ""  # sent back as x-request-id
        self.extra_headers: Headers = []  # of any answer
        self._asgi_send = send
        self._outlet: Outlet = scope["extensions"][EXTENSION].outlet
        self._unframed: UnframedAnswer | None = scope["extensions"].get(UNFRAMED)
        self._headers: dict[bytes, bytes] = dict(scope["headers"])

    def header(self, name: bytes) -> bytes:
        """Return a header of the request; ``name`` in lower case."""
        return self._headers.get(name, b"")

    def query(self, name: str) -> str:
        """A parameter behind the path's question mark, "" where it is missing."""
        return parse_qs(self._query.decode("latin-1")).get(name, [""])[0]

    async def body(self, max_bytes: int) -> bytes:
        """413 when it is longer than ``max_bytes``, 408 when it does not come, ClientGone."""
        announced = self.header(b"content-length")
        if announced.isdigit() and int(announced) > max_bytes:
            raise _too_large(max_bytes)
        try:
            return await asyncio.wait_for(self._read_body(max_bytes), _BODY_SECONDS)
        except asyncio.TimeoutError:
            raise ApiError(
                408, "The request's body did not arrive in time.", "RequestTimeout", headers=_close()
            ) from None

    async def _read_body(self, max_bytes: int) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size > max_bytes:
                raise _too_large(max_bytes)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    # ---- answers

    async def answer(self, status: int, body: bytes, headers: Headers | None = None) -> None:
        """A whole answer; JSON unless ``headers`` name another content type."""
        own = list(headers or [])
        if body and not any(name == b"content-type" for name, _ in own):
            own.append(_JSON)
        own.append((b"content-length", str(len(body)).encode()))
        await self._begin(status, own)
        await self._send({"type": "http.response.body", "body": body})

    async def begin_stream(self) -> None:
        """The head of an event stream."""
        if self._unframed is not None:
            self._outlet = self._unframed.begin()
        await self._begin(200, list(_EVENT_STREAM))

    @property
    def live(self) -> Outlet:
        """Takes pieces of an event stream that has begun, at once."""
        return self._outlet

    async def write(self, data: bytes) -> None:
        """A piece of an event stream. Waits while the client does not read."""
        if self._unframed is not None:
            await self._unframed.write(data)
            return
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        self._outlet.has_written = True
        await self._asgi_send(message)

    async def _begin(self, status: int, headers: Headers) -> None:
        self.status = status
        headers.extend(self.extra_headers)
        if self.request_id:
            headers.append((b"x-request-id", self.request_id.encode("latin-1", "replace")))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


def _close() -> Headers:
    return [(b"connection", b"close")]


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413, f"The request's body is larger than {max_bytes:,} bytes.", "RequestEntityTooLarge", headers=_close()
    )
