"""uvicorn's protocol of a connection, with a way to write to it from outside of a coroutine.

ASGI's ``send`` is awaited: a token that arrives would first have to wake the coroutine that answers its request.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

EXTENSION = "kvplan.connection"  # of the ASGI scope


class Connection(HttpToolsProtocol):
    """Names itself in the scope of each of its requests."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: self}  # type: ignore[dict-item]

    @property
    def is_ready(self) -> bool:
        """Whether what is written now need not wait for the client to read, nor is for nobody."""
        return not self.flow.write_paused and not self.transport.is_closing()

    def write_chunk(self, data: bytes) -> None:
        """One chunk, not empty, of an answer without a length, whose head ``send`` has written.

        The event loop sends it before it sleeps, together with others of the same connection.
        """
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
