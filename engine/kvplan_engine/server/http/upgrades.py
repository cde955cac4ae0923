"""Requests that would rather speak another protocol, answered in the one that they are written in.

Java's HTTP client asks for HTTP/2 with its first request to each server. A server may ignore that (RFC 9110, 7.8), but
the parser takes what follows such a head for the other protocol's: the request would have lost its body.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import httptools

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
