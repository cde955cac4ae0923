"""An answer of a server that nobody vouches for: ``http.client``'s, with an end to its bytes and to its time.

``http.client`` counts neither: a timeout of a socket begins anew with every byte, and a body is as long as the server
says. Everything that an answer sends counts here, whatever HTTP calls it: heads, sizes of chunks, trailers, bodies.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Final, cast

from kvplan.units import MIB

MOST_ANSWER_BYTES: Final = 16 * MIB
"""A page of metrics has some 200 KB for each data-parallel engine, and settings and lists of models have less."""
_PIECE_BYTES: Final = 65536


class TooLongError(http.client.HTTPException):
    """An answer of more bytes than any that is meant."""


@dataclass(slots=True)
class Allowance:
    """What an answer may still take. deadline: on ``time.monotonic()``'s clock."""

    deadline: float
    num_bytes: int = MOST_ANSWER_BYTES

    @property
    def seconds(self) -> float:
        """What is left of the time. TimeoutError if nothing is."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer takes too long")
        return left


class _BoundedReader(io.RawIOBase):
    """A socket's bytes, as long as the allowance lasts."""

    def __init__(self, connected: socket.socket, allowance: Allowance) -> None:
        self._socket, self._allowance = connected, allowance
        self._raw = cast(io.RawIOBase, connected.makefile("rb", buffering=0))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        allowance = self._allowance
        self._socket.settimeout(allowance.seconds)
        num_read = self._raw.readinto(buffer)
        allowance.num_bytes -= num_read or 0
        if allowance.num_bytes < 0:
            raise TooLongError("the answer is too long")
        return num_read

    def close(self) -> None:
        self._raw.close()
        super().close()


class _BoundedSocket:
    """Stands for a socket where ``HTTPResponse`` asks it for a file."""

    def __init__(self, connected: socket.socket, allowance: Allowance) -> None:
        self._socket, self._allowance = connected, allowance

    def makefile(self, mode: str) -> IO[bytes]:
        return io.BufferedReader(_BoundedReader(self._socket, self._allowance), _PIECE_BYTES)


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None,
    headers: dict[str, str],
    allowance: Allowance,
) -> tuple[int, bytes]:
    """Status and body of an answer. OSError or HTTPException for whatever goes wrong."""
    connection.timeout = allowance.seconds
    connection.response_class = partial(_bounded_response, allowance)  # type: ignore[assignment]  # it is only called
    if connection.sock is not None:
        connection.sock.settimeout(allowance.seconds)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    pieces = []
    while piece := answer.read(_PIECE_BYTES):  # as it comes: a body's own length is only the server's word
        pieces.append(piece)
    if answer.length:  # of a body with a length, what did not come
        raise http.client.IncompleteRead(b"", answer.length)
    return answer.status, b"".join(pieces)


def _bounded_response(
    allowance: Allowance, connected: socket.socket, *args: Any, **options: Any
) -> http.client.HTTPResponse:
    return http.client.HTTPResponse(cast(socket.socket, _BoundedSocket(connected, allowance)), *args, **options)
