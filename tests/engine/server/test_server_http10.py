"""Clients that speak HTTP/1.0, and those that wish for another protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest
from server_process import ServerProcess, decoded_events

pytestmark = pytest.mark.xdist_group("server")  # one server for all who share it

COMPLETION = {"prompt": "the cache", "temperature": 0.0, "max_tokens": 12, "ignore_eos": True, "stream": True}


def _request(version: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return f"POST /v1/completions HTTP/{version}\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


def _choices(events: list[Any]) -> list[Any]:
    """What is said of the answer: names and times of two answers differ."""
    return [event if event == "[DONE]" else event["choices"] for event in events]


def _check_stream(server: ServerProcess, body: dict[str, Any], answer: bytes) -> None:
    head, _, stream = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"\r\nconnection: close" in head
    assert b"transfer-encoding" not in head
    assert _choices(list(decoded_events(stream))) == _choices(server.events("/v1/completions", body))


@pytest.mark.parametrize("fields", [{}, {"stop": ["never said"]}, {"echo": True}, {"logprobs": 2, "n": 3}])
def test_a_stream_is_not_sent_in_chunks(server: ServerProcess, fields: dict[str, Any]) -> None:
    body = {**COMPLETION, **fields}
    _check_stream(server, body, server.exchange(_request("1.0", body)))


def test_a_stream_is_whole_when_its_client_reads_late(server: ServerProcess) -> None:
    body = {**COMPLETION, "max_tokens": 200, "n": 64}
    _check_stream(server, body, server.exchange(_request("1.0", body), pause=1.0))


def test_an_answer_in_chunks_may_come_before_on_the_same_connection(server: ServerProcess) -> None:
    received = server.exchange(_request("1.1", COMPLETION) + _request("1.0", COMPLETION))
    chunked, end, unframed = received.partition(b"\r\n0\r\n\r\n")
    assert b"\r\ntransfer-encoding: chunked" in chunked
    assert end
    _check_stream(server, COMPLETION, unframed)


def test_whole_answers_and_errors_say_how_long_they_are(server: ServerProcess) -> None:
    for body, status in (({**COMPLETION, "stream": False}, 200), ({**COMPLETION, "max_tokens": -1}, 400)):
        head, _, content = server.exchange(_request("1.0", body)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d" % status)
        assert b"\r\ncontent-length: %d\r\n" % len(content) in head


BODY = json.dumps({"prompt": "the cache", "max_tokens": 3, "temperature": 0.0, "ignore_eos": True}).encode()
WISH = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
PLAIN = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n%b"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n%btransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"


@pytest.mark.parametrize("request_form", [PLAIN, CHUNKED], ids=["plain", "chunked"])
@pytest.mark.parametrize("cut", [0, 20, 150, 230])
def test_a_request_that_wishes_for_http2_keeps_its_body(server: ServerProcess, request_form: bytes, cut: int) -> None:
    sent = request_form % (WISH, len(BODY), BODY)
    last = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    received = server.exchange(sent[:cut], sent[cut:] + sent + last, pause=0.01)
    assert received.count(b"HTTP/1.1 200") == 3, received
    assert received.count(b'"completion_tokens":3') == 2
    assert b'"text_completion"' in received


def test_a_connection_that_is_to_close_closes(server: ServerProcess) -> None:
    wish = b"connection: close, Upgrade\r\nupgrade: h2c\r\n"
    received = server.exchange(PLAIN % (wish, len(BODY), BODY))
    assert received.startswith(b"HTTP/1.1 200")
    assert b"\r\nconnection: close" in received


def test_there_is_no_websocket_and_no_tunnel(server: ServerProcess) -> None:
    last = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    wish = b"GET /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    received = server.exchange(wish + last)
    assert received.startswith(b"HTTP/1.1 405")
    assert received.count(b"HTTP/1.1 200") == 1
    assert server.exchange(b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert "WebSocket" not in "".join(server.lines)
