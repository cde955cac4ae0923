"""uvicorn's protocol of a connection, with a way to write to it from outside of a coroutine.

ASGI's ``send`` is awaited: a token that arrives would first have to wake the coroutine that answers its request.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import Any, Protocol

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from kvplan_engine.server.http.bounds import (
    MOST_HEAD_BYTES,
    MOST_HEADERS,
    HeadTooLarge,
    MessageMeter,
    WaitingConnections,
    WaitingTimes,
)
from kvplan_engine.server.openai.errors import ApiError, bad_request, unavailable

# Requests that would rather speak another protocol, answered in the one that they are written in.
#
# Java's HTTP client asks for HTTP/2 with its first request to each server. A server may ignore that (RFC 9110, 7.8),
# but the parser takes what follows such a head for the other protocol's: the request would have lost its body.


# What the wish consists of, beside its words in the header "connection".
_DROPPED = (b"upgrade", b"http2-settings")

Headers = Iterable[tuple[bytes, bytes]]


class Receiver(Protocol):
    """Whom the parser calls; ``url`` and ``headers``, names in lower case: of the request that it reads."""

    url: bytes
    headers: list[tuple[bytes, bytes]]


class RequestParser(httptools.HttpRequestParser):
    """Reads a request that wishes for another protocol a second time, without the wish."""

    def __init__(self, receiver: Receiver) -> None:
        super().__init__(receiver)
        self._receiver = receiver

    def is_wish(self) -> bool:
        """Whether the head that was read last is to be ignored: it comes again. CONNECT has nothing but the wish."""
        return self.should_upgrade() and self.get_method() != b"CONNECT"

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as wish:
            if not self.is_wish():
                raise
            again = self._head() + data[wish.args[0] :]
            super().__init__(self._receiver)  # it would take no more after a head that says "close"
            self.feed_data(again)

    def _head(self) -> bytes:
        version = self.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.get_method(), self._receiver.url, version)]
        lines += [b"%b: %b" % header for header in _without_wish(self._receiver.headers)]
        return b"\r\n".join([*lines, b"", b""])


def _without_wish(headers: Headers) -> Headers:
    for name, value in headers:
        if name == b"connection":
            words = [word for word in value.split(b",") if word.strip().lower() not in _DROPPED]
            if words:
                yield name, b",".join(words)
        elif name not in _DROPPED:
            yield name, value


# Extensions of the ASGI scope.
EXTENSION = "kvplan.connection"
UNFRAMED = "kvplan.unframed"

_PIECE_BYTES = 16 * 1024
_MOST_PIPELINED = 16
_HEADER_FRAMING = len(b": \r\n")
# How long, and how much, is read of a client whose request was refused before it was complete.
_LINGERING_SECONDS = 5.0
_MOST_LINGERING_BYTES = 16 * 1024 * 1024


class Outlet:
    """Writes chunks, not empty, of an answer without a length whose head has been written.

    is_ready: whether what is written now need not wait for the client to read, nor is for nobody. has_written: whether
    anything was given to the event loop that it may still hold. Few attributes, and in slots: this is touched for each
    token, and each cache line of it comes from memory.
    """

    __slots__ = ("_descriptor", "_transport", "has_written", "is_ready")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._descriptor: int = transport.get_extra_info("socket").fileno()
        self.has_written = True
        self.is_ready = True

    @staticmethod
    def _framed(data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data)

    def write(self, data: bytes) -> None:
        """One chunk, which the event loop sends before it sleeps, together with others of the same connection."""
        self.has_written = True
        self._transport.write(self._framed(data))

    def send(self, data: bytes) -> None:
        """One chunk that the kernel gets at once. By way of the event loop that costs a third more."""
        if self.has_written:
            if self._transport.get_write_buffer_size():
                self._transport.write(self._framed(data))
                return
            self.has_written = False
        chunk = self._framed(data)
        try:
            num_sent = os.write(self._descriptor, chunk)
        except OSError:  # the kernel's buffer is full, or the client gone: the transport sees to either
            num_sent = 0
        if num_sent < len(chunk):
            self.has_written = True
            self._transport.write(chunk[num_sent:])


class UnframedOutlet(Outlet):
    """An outlet for HTTP/1.0, which knows no chunks."""

    __slots__ = ()

    @staticmethod
    def _framed(data: bytes) -> bytes:
        return data


class UnframedAnswer:
    """A stream in answer to an HTTP/1.0 request: nothing but its end says how long it is, and ends the connection.

    uvicorn would send it in chunks, so only head and end go by way of ``cycle``.
    """

    def __init__(self, connection: Connection, cycle: RequestResponseCycle) -> None:
        self._connection = connection
        self._cycle = cycle

    def begin(self) -> Outlet:
        """To be called before the head is sent. What takes the pieces of the stream without waiting."""
        self._cycle.chunked_encoding = False
        outlet = UnframedOutlet(self._connection.transport)
        outlet.is_ready = self._connection.outlet.is_ready
        self._connection.outlet = outlet
        return outlet

    async def write(self, data: bytes) -> None:
        """A piece of the stream. Waits while the client does not read."""
        if self._cycle.flow.write_paused and not self._cycle.disconnected:
            await self._cycle.flow.drain()
        if not self._cycle.disconnected:
            self._connection.outlet.write(data)


class RefusedRequest:
    """Stands in the pipeline for a request that cannot be read: an error is all that is left to say.

    What the client is still sending is read for a while: if the connection were closed at once, the kernel would
    throw away the error together with it.
    """

    response_complete = False

    def __init__(self, connection: Connection, error: ApiError) -> None:
        self._connection = connection
        self._error = error

    def answer(self) -> None:
        """Send the error, say that nothing follows, and wait for the client to close the connection."""
        connection, body = self._connection, self._error.body()
        head = [STATUS_LINE[self._error.status]]
        head += [b"%b: %b\r\n" % header for header in connection.server_state.default_headers]
        head += [b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body), b"connection: close\r\n\r\n"]
        connection.transport.write(b"".join([*head, body]))
        if connection.transport.can_write_eof():
            connection.transport.write_eof()
        connection.flow.resume_reading()
        connection.await_client(_LINGERING_SECONDS)


class Connection(HttpToolsProtocol):
    """Names itself in the scope of each of its requests, and bounds what comes before them.

    outlet: for what is written outside of ASGI.
    """

    outlet: Outlet
    parser: RequestParser

    def __init__(self, times: WaitingTimes, waiting: WaitingConnections, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.parser = RequestParser(self)
        self.timeout_keep_alive = times.keep_alive_seconds  # type: ignore[assignment]
        self._times = times
        self._waiting = waiting
        self._meter = MessageMeter()
        self._unparsed = b""
        self._is_idle = False  # since its last answer
        self._is_refused = False
        self._num_dropped_bytes = 0

    # ---- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.outlet = Outlet(transport)
        if not self._waiting.make_room(len(self.connections)):
            self._refuse(unavailable("The server has as many connections as it can have."))
        else:
            self.await_client(self._times.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self.outlet.is_ready = False
        self._waiting.remove(self)
        self._unset_keepalive_if_required()
        self._unparsed = b""
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self.outlet.is_ready = False
        super().pause_writing()

    def resume_writing(self) -> None:
        self.outlet.is_ready = not self.transport.is_closing()
        super().resume_writing()

    # ---- waiting for a request

    def await_client(self, seconds: float) -> None:
        """Close the connection after ``seconds``, or for another one, unless a request's head is complete by then."""
        self._waiting.add(self)
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        if self._meter.has_begun and not self._is_refused:
            self._refuse(ApiError(408, "The request's head did not arrive in time.", "RequestTimeout"))
        else:
            super().timeout_keep_alive_handler()

    def close_for_another(self) -> None:
        self.transport.abort()

    def on_response_complete(self) -> None:
        self._is_idle = not self.pipeline
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._is_idle:
            self._waiting.add(self)
        if self._unparsed:
            data, self._unparsed = self._unparsed, b""
            self._parse(data)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if isinstance(cycle, RefusedRequest):
            cycle.answer()
        else:
            super()._start_asgi_task(cycle, app)

    # ---- what the client sends

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self._drop(len(data))
        elif self._unparsed:
            self._unparsed += data
            self.flow.pause_reading()
        else:
            if self._is_idle:
                self._is_idle = False
                self.await_client(self._times.head_seconds)
            self._parse(data)

    def _drop(self, num_bytes: int) -> None:
        self._num_dropped_bytes += num_bytes
        if self._num_dropped_bytes > _MOST_LINGERING_BYTES:
            self.transport.abort()

    def _parse(self, data: bytes) -> None:
        """Parse in pieces, and no further than to the requests that are next: each piece keeps the event loop."""
        for start in range(0, len(data), _PIECE_BYTES):
            if len(self.pipeline) >= _MOST_PIPELINED:
                self._unparsed = data[start:]
                self.flow.pause_reading()
                return
            self._parse_piece(data[start : start + _PIECE_BYTES])
            if self._is_refused or self.transport.is_closing():
                return

    def _parse_piece(self, data: bytes) -> None:
        self._meter.add_received(len(data))
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserCallbackError as problem:
            self._refuse(_too_large() if isinstance(problem.__context__, HeadTooLarge) else _invalid())
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):  # the latter for CONNECT alone
            self._refuse(_invalid())
        else:
            if self._meter.is_too_much:
                self._refuse(_too_large())

    def _refuse(self, error: ApiError) -> None:
        """Say ``error`` when the requests before are answered, and read no more."""
        self._is_refused = True
        refused, cycle = RefusedRequest(self, error), self.cycle
        if cycle is None or cycle.response_complete:
            refused.answer()
        elif self._meter.is_in_head:
            self.pipeline.appendleft((refused, self.app))  # type: ignore[arg-type]
        elif cycle.response_started or self.pipeline:
            self.transport.close()
        else:  # the body of the request that is being read
            cycle.disconnected = True
            cycle.message_event.set()
            refused.answer()

    # ---- what the parser calls

    def on_message_begin(self) -> None:
        self._meter.begin_head()
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: self}  # type: ignore[dict-item]

    def on_url(self, url: bytes) -> None:
        self._meter.add_url(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._meter.is_in_head:  # a trailer, which nobody asked for
            return
        self._meter.add_header(len(name) + len(value) + _HEADER_FRAMING)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.is_wish():
            return
        self._meter.check_head()
        super().on_headers_complete()
        self._meter.end_head()
        self._is_idle = False
        self._unset_keepalive_if_required()
        self._waiting.remove(self)
        if self.scope["http_version"] == "1.0":
            self.scope["extensions"][UNFRAMED] = UnframedAnswer(self, self.cycle)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        self._meter.add_body(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.is_wish():
            return
        self._meter.expect_head()
        super().on_message_complete()


def _too_large() -> ApiError:
    return ApiError(
        431,
        f"The request's head is larger than {MOST_HEAD_BYTES // 1024} KiB, or has more than {MOST_HEADERS} lines; or "
        "its body's chunks come with too much beside what they carry.",
        "RequestHeaderFieldsTooLarge",
    )


def _invalid() -> ApiError:
    return bad_request("This is not a valid HTTP request.")
