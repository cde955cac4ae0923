"""uvicorn's protocol of a connection, with a way to write to it from outside of a coroutine.

ASGI's ``send`` is awaited: a token that arrives would first have to wake the coroutine that answers its request.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from kvplan_engine.server.http.upgrades import RequestParser

# Extensions of the ASGI scope.
EXTENSION = "kvplan.connection"
UNFRAMED = "kvplan.unframed"


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
    """For HTTP/1.0, which knows no chunks."""

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


class Connection(HttpToolsProtocol):
    """Names itself in the scope of each of its requests. outlet: for what is written outside of ASGI."""

    outlet: Outlet
    parser: RequestParser

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.parser = RequestParser(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.outlet = Outlet(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.outlet.is_ready = False
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self.outlet.is_ready = False
        super().pause_writing()

    def resume_writing(self) -> None:
        self.outlet.is_ready = not self.transport.is_closing()
        super().resume_writing()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: self}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        if self.parser.is_wish():
            return
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            self.scope["extensions"][UNFRAMED] = UnframedAnswer(self, self.cycle)  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        if not self.parser.is_wish():
            super().on_message_complete()
