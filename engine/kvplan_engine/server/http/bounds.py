"""How much a client may send, and how long it may take, before its request is known: nobody has shown a key by then."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from typing import Protocol

MOST_HEAD_BYTES = 64 * 1024
MOST_HEADERS = 100
# Of chunked bodies: the sizes of chunks, their extensions, and trailers. Chunks of one byte have five bytes around it.
_MOST_FRAMING_BYTES = 2 * MOST_HEAD_BYTES
_FRAMING_PER_BYTE = 16
# Descriptors that are not for connections: a quarter where there are few.
_MOST_SPARE_DESCRIPTORS = 64


class HeadTooLarge(Exception):
    """A request's head is larger than any that is read."""


class MessageMeter:
    """Counts what a client sends for one request after the other. is_in_head: whether its head is not complete yet.

    A read may end one request and begin the next: what it has of the next one counts once its head is complete.
    """

    __slots__ = ("_carried", "_head_bytes", "_num_headers", "_received", "is_in_head")

    def __init__(self) -> None:
        self.expect_head()

    def expect_head(self) -> None:
        """A request is complete, or the connection is new."""
        self.is_in_head = True
        self._received = self._carried = 0
        self.begin_head()

    def begin_head(self) -> None:
        """The first byte of a request."""
        self._head_bytes = self._num_headers = 0

    def add_received(self, num_bytes: int) -> None:
        """Bytes that are about to be parsed."""
        self._received += num_bytes

    def add_url(self, num_bytes: int) -> None:
        self._head_bytes += num_bytes

    def add_header(self, num_bytes: int) -> None:
        """HeadTooLarge beyond MOST_HEADERS."""
        self._head_bytes += num_bytes
        self._num_headers += 1
        if self._num_headers > MOST_HEADERS:
            raise HeadTooLarge

    def end_head(self) -> None:
        """What follows is the body."""
        self.is_in_head = False

    def check_head(self) -> None:
        """HeadTooLarge beyond MOST_HEAD_BYTES."""
        if self._head_bytes > MOST_HEAD_BYTES:
            raise HeadTooLarge

    def add_body(self, num_bytes: int) -> None:
        self._carried += num_bytes

    @property
    def has_begun(self) -> bool:
        """Whether anything of a request's head has come."""
        return self.is_in_head and self._received > 0

    @property
    def is_too_much(self) -> bool:
        """Whether what has been parsed is more than a head may have, or than a body needs around it."""
        if self.is_in_head:
            return self._received > MOST_HEAD_BYTES
        return self._received - self._carried > _MOST_FRAMING_BYTES + _FRAMING_PER_BYTE * self._carried


class Closable(Protocol):
    """A connection that waits for a request."""

    def close_for_another(self) -> None:
        """End it: a newer one needs its descriptor."""


@dataclass(frozen=True, slots=True)
class WaitingTimes:
    """keep_alive_seconds: for which a connection stays that has had an answer. head_seconds: for a request's head."""

    keep_alive_seconds: float
    head_seconds: float


class WaitingConnections:
    """List the connections, of at most ``most_open``, that wait for a request: the one that waited longest first."""

    def __init__(self, most_open: int) -> None:
        self._most_open = most_open
        self._waiting: dict[Closable, None] = {}

    def add(self, connection: Closable) -> None:
        """It waits from now on."""
        self._waiting.pop(connection, None)
        self._waiting[connection] = None

    def remove(self, connection: Closable) -> None:
        """Its request has come, or it is closed."""
        self._waiting.pop(connection, None)

    def make_room(self, num_open: int) -> bool:
        """End the one that has waited longest where too many are open. False where too many are and none waits."""
        if num_open <= self._most_open:
            return True
        if not self._waiting:
            return False
        oldest = next(iter(self._waiting))
        del self._waiting[oldest]
        oldest.close_for_another()
        return True


def most_connections() -> int:
    """How many this process has descriptors for, beside those it has open. Raises its limit as far as it may."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most == resource.RLIM_INFINITY:
        most = 1 << 20
    num_open = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 32
    return max(1, most - num_open - min(_MOST_SPARE_DESCRIPTORS, most // 4))
