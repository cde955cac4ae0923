"""uvicorn's protocol of a connection, with a way to write to it from outside of a coroutine.

ASGI's ``send`` is awaited: a token that arrives would first have to wake the coroutine that answers its request.
"""

from __future__ import annotations

import asyncio
import os

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

EXTENSION = "kvplan.connection"  # of the ASGI scope


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

    def write(self, data: bytes) -> None:
        """One chunk, which the event loop sends before it sleeps, together with others of the same connection."""
        self.has_written = True
        self._transport.write(_chunk(data))

    def send(self, data: bytes) -> None:
        """One chunk that the kernel gets at once. By way of the event loop that costs a third more."""
        if self.has_written:
            if self._transport.get_write_buffer_size():
                self._transport.write(_chunk(data))
                return
            self.has_written = False
        chunk = _chunk(data)
        try:
            num_sent = os.write(self._descriptor, chunk)
        except OSError:  # the kernel's buffer is full, or the client gone: the transport sees to either
            num_sent = 0
        if num_sent < len(chunk):
            self.has_written = True
            self._transport.write(chunk[num_sent:])


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Connection(HttpToolsProtocol):
    """Names itself in the scope of each of its requests. outlet: for what is written outside of ASGI."""

    outlet: Outlet

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
