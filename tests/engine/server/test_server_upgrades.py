"""Clients that ask for another protocol, as Java's does for HTTP/2: they are answered in HTTP/1.1."""

from __future__ import annotations

import json
import socket
import time

import pytest
from server_process import ServerProcess

pytestmark = pytest.mark.xdist_group("server")  # one server for all who share it

BODY = json.dumps({"prompt": "the cache", "max_tokens": 3, "temperature": 0.0, "ignore_eos": True}).encode()
WISH = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
PLAIN = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n%b"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n%btransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"


def _answered(server: ServerProcess, *pieces: bytes) -> bytes:
    """All that the server says to ``pieces``, sent one after the other, until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(0.01)
        received = b""
        while more := connection.recv(1 << 16):
            received += more
    return received


@pytest.mark.parametrize("request_form", [PLAIN, CHUNKED], ids=["plain", "chunked"])
@pytest.mark.parametrize("cut", [0, 20, 150, 230])
def test_a_request_that_wishes_for_http2_keeps_its_body(server: ServerProcess, request_form: bytes, cut: int) -> None:
    sent = request_form % (WISH, len(BODY), BODY)
    last = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    received = _answered(server, sent[:cut], sent[cut:] + sent + last)
    assert received.count(b"HTTP/1.1 200") == 3, received
    assert received.count(b'"completion_tokens":3') == 2
    assert b'"text_completion"' in received


def test_a_connection_that_is_to_close_closes(server: ServerProcess) -> None:
    wish = b"connection: close, Upgrade\r\nupgrade: h2c\r\n"
    received = _answered(server, PLAIN % (wish, len(BODY), BODY))
    assert received.startswith(b"HTTP/1.1 200")
    assert b"\r\nconnection: close" in received


def test_there_is_no_websocket_and_no_tunnel(server: ServerProcess) -> None:
    last = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    wish = b"GET /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    received = _answered(server, wish + last)
    assert received.startswith(b"HTTP/1.1 405")
    assert received.count(b"HTTP/1.1 200") == 1
    assert _answered(server, b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert "WebSocket" not in "".join(server.lines)
