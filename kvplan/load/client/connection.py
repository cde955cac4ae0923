"""Kept connections to one server. An answer is read as it comes, on the event loop's own callbacks."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Final, cast

import httptools

from kvplan.load.client.exchange import Exchange
from kvplan.load.client.record import RequestRecord
from kvplan.metrics.http import ServerAddress, unreachable

_CONNECT_SECONDS: Final = 30.0


class Connection(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._now = 0.0
        self._may_be_kept = True

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and self._may_be_kept

    def send(self, exchange: Exchange, request: bytes) -> None:
        assert self._transport is not None, "the connection is not open"
        self._exchange = exchange
        self._transport.write(request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        if self._exchange is None:  # nobody asked: what comes next could be taken for the answer to another request
            self._may_be_kept = False
            self.close()
        elif not self._exchange.takes(len(data)):
            self.close()
        else:
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lost(f"the answer is not HTTP: {error}")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._may_be_kept = False
        self._now = time.perf_counter()
        self._lost(f"the server closed the connection{f': {error}' if error else ''}")

    def on_headers_complete(self) -> None:
        if self._exchange is None:
            self._may_be_kept = False
        else:
            self._exchange.on_status(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        if self._exchange is not None:
            self._exchange.on_body(body, self._now)

    def on_message_complete(self) -> None:
        exchange, self._exchange = self._exchange, None
        self._may_be_kept = self._may_be_kept and self._parser.should_keep_alive()
        if exchange is not None:
            exchange.on_complete(self._now)

    def _lost(self, reason: str) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.on_lost(self._now, reason)


class Client:
    """Sends requests to one server, each over a kept connection that is free or over a new one.

    timeout_seconds: for a whole answer. Use within one event loop; ``close`` ends what is still open.
    """

    def __init__(self, address: ServerAddress, *, timeout_seconds: float) -> None:
        self._address = address
        self._timeout_seconds = timeout_seconds
        self._free: list[Connection] = []
        self._all: set[Connection] = set()
        self._tls = ssl.create_default_context() if address.is_tls else None

    async def send(self, record: RequestRecord, request: bytes) -> None:
        """Send it and wait for the answer's end; what happened is in ``record``. Never raises for a server's sake."""
        record.started = time.perf_counter()
        while True:
            connection = self._take_free()
            is_kept = connection is not None
            if connection is None:
                connection = await self._connect(record)
            if connection is None:
                return
            exchange = await self._exchange(connection, record, request)
            # A server may close a kept connection just when it is used again: not the request's fault.
            if not (is_kept and record.error and not exchange.has_answer and not connection.is_open):
                return
            record.error = None

    def close(self) -> None:
        for connection in self._all:
            connection.close()
        self._all.clear()
        self._free.clear()

    async def _exchange(self, connection: Connection, record: RequestRecord, request: bytes) -> Exchange:
        loop = asyncio.get_running_loop()
        exchange = Exchange(record, loop.create_future(), len(request))
        expiry = loop.call_later(self._timeout_seconds, self._expire, connection, record)
        try:
            connection.send(exchange, request)
            await exchange.done
        except asyncio.CancelledError:
            record.fail("stopped before its end")
            connection.close()
            raise
        finally:
            expiry.cancel()
            if connection.is_open:
                self._free.append(connection)
            else:
                connection.close()
                self._all.discard(connection)
        return exchange

    def _expire(self, connection: Connection, record: RequestRecord) -> None:
        record.fail(f"no end within {self._timeout_seconds:g} s")
        connection.close()

    def _take_free(self) -> Connection | None:
        while self._free:
            connection = self._free.pop()
            if connection.is_open:
                return connection
            self._all.discard(connection)
        return None

    async def _connect(self, record: RequestRecord) -> Connection | None:
        """A new connection; None, with the reason in the record, if there is none to be had."""
        loop = asyncio.get_running_loop()
        address = self._address
        try:
            opening = loop.create_connection(Connection, address.host, address.port, ssl=self._tls)
            _, connection = await asyncio.wait_for(opening, _CONNECT_SECONDS)
        except (OSError, asyncio.TimeoutError) as error:
            # Before Python 3.11 asyncio's TimeoutError is not the built-in one.
            record.fail(unreachable(address, error if isinstance(error, OSError) else TimeoutError()).message)
            record.ended = time.perf_counter()
            return None
        self._all.add(connection)
        return connection
