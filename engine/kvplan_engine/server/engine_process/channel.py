"""The engine's end of the socket."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterable

import msgspec

from kvplan_engine.server.messages import FrameReader, ToEngine, decode_to_engine, frame

_READ_BYTES = 1 << 18


class ApiGone(Exception):
    """The API process closed its end."""


class Channel:
    """Messages from and to the API process. Sending waits until it reads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._frames = FrameReader()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._waiting = select.poll()
        self._waiting.register(connection, select.POLLIN)

    def wake_by(self, descriptors: Iterable[int]) -> None:
        """Waiting ends, perhaps without a message, when one of ``descriptors`` can be read or is closed."""
        for descriptor in descriptors:
            self._waiting.register(descriptor, select.POLLIN)

    def send(self, message: msgspec.Struct) -> None:
        """ApiGone when nobody reads any more."""
        try:
            self._connection.sendall(frame(message))
        except (BrokenPipeError, ConnectionResetError):
            raise ApiGone from None

    def receive(self, *, wait: bool) -> list[ToEngine]:
        """The messages that have arrived; with ``wait`` there is one, or another reason to wake (``wake_by``).

        ApiGone at the end of the connection.
        """
        messages: list[ToEngine] = []
        if wait:
            self._waiting.poll()
        while self._poll.poll(0):
            try:
                data = self._connection.recv(_READ_BYTES)
            except ConnectionResetError:
                raise ApiGone from None
            if not data:
                raise ApiGone
            messages += map(decode_to_engine, self._frames.feed(data))
        return messages


def end_with(connection: socket.socket) -> None:
    """From now on this process ends at once when the API process dies, whatever it is busy with."""

    def watch() -> None:
        poll = select.poll()
        poll.register(connection, select.POLLRDHUP)
        poll.poll()
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
