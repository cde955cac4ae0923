"""Chunks that go to the kernel past the event loop: in order, whole, and none to a client that is gone."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from kvplan_engine.server.http.connection import Outlet


class _Transport:
    """The event loop's end of ``connection``: what is written to it waits."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.waiting = b""

    def get_extra_info(self, name: str) -> socket.socket:
        assert name == "socket"
        return self._connection

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def write(self, data: bytes) -> None:
        self.waiting += data


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def test_a_chunk_is_with_the_kernel_at_once(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    transport = _Transport(ours)
    Outlet(transport).send(b"data: token\n\n")  # type: ignore[arg-type]
    assert theirs.recv(100) == b"d\r\ndata: token\n\n\r\n"
    assert transport.waiting == b""


def test_a_chunk_stays_behind_what_the_event_loop_still_holds(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    transport = _Transport(ours)
    outlet = Outlet(transport)  # type: ignore[arg-type]
    outlet.send(b"1")
    outlet.write(b"2")
    outlet.send(b"3")
    assert theirs.recv(100) == b"1\r\n1\r\n"
    assert transport.waiting == b"1\r\n2\r\n1\r\n3\r\n"
    transport.waiting = b""
    outlet.send(b"4")
    assert theirs.recv(100) == b"1\r\n4\r\n"


def test_what_the_kernel_does_not_take_waits_in_the_event_loop(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    transport = _Transport(ours)
    outlet = Outlet(transport)  # type: ignore[arg-type]
    chunk = b"x" * 100_000
    while not transport.waiting:
        outlet.send(chunk)
    outlet.send(b"last")
    received = b""
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            received += theirs.recv(1 << 20)
    framed = b"186a0\r\n" + chunk + b"\r\n"
    whole = received + transport.waiting
    assert whole.endswith(b"4\r\nlast\r\n")
    assert whole.removesuffix(b"4\r\nlast\r\n") == framed * (len(whole) // len(framed))


def test_a_client_that_is_gone_is_left_to_the_event_loop(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    transport = _Transport(ours)
    theirs.close()
    Outlet(transport).send(b"1")  # type: ignore[arg-type]
    assert transport.waiting == b"1\r\n1\r\n"
