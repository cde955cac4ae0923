"""Clients of other kinds: pages of other servers in a browser, HTTP/1.0, and wishes for another protocol."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess, decoded_events

# As Chrome sends them for fetch() with a key and a JSON body, but for headers that say what the browser is.
PREFLIGHT = {
    "Accept": "*/*",
    "Access-Control-Request-Headers": "authorization,content-type",
    "Access-Control-Request-Method": "POST",
    "Origin": "http://localhost:3000",
    "Sec-Fetch-Mode": "cors",
    "Sec-Fetch-Site": "cross-site",
    "Referer": "http://localhost:3000/",
}
pytestmark = pytest.mark.xdist_group("server")  # one server for all who share it

KEY = {"Authorization": "Bearer secret"}
FINE = {"prompt": [5, 6], "max_tokens": 2}
Answer = tuple[int, dict[str, str], bytes]


def _ask(server: ServerProcess, method: str, path: str, headers: dict[str, str], body: object = None) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    result = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return result


def test_a_browser_may_send_what_it_asks_for(server: ServerProcess) -> None:
    status, headers, body = _ask(server, "OPTIONS", "/v1/chat/completions", PREFLIGHT)
    assert (status, body) == (200, b"OK")
    assert headers["access-control-allow-origin"] == "*"
    assert "POST" in headers["access-control-allow-methods"].split(", ")
    assert headers["access-control-allow-headers"] == "authorization,content-type"
    assert headers["access-control-max-age"] == "600"
    assert "access-control-allow-credentials" not in headers


@pytest.mark.parametrize(("path", "body", "status"), [
    ("/v1/completions", FINE, 200),
    ("/v1/completions", {**FINE, "stream": True}, 200),
    ("/v1/completions", {"prompt": ""}, 400),
    ("/v1/nothing", FINE, 404),
], ids=["answer", "stream", "error", "not-found"])  # fmt: skip
def test_a_page_can_read_answers_streams_and_errors(
    server: ServerProcess, path: str, body: object, status: int
) -> None:
    got, answered, _ = _ask(server, "POST", path, {"Origin": "http://localhost:3000"}, body)
    assert got == status
    assert answered["access-control-allow-origin"] == "*"


def test_whoever_is_no_page_is_answered_as_ever(server: ServerProcess) -> None:
    _, headers, _ = _ask(server, "POST", "/v1/completions", {}, FINE)
    assert not any(name.startswith("access-control") for name in headers)
    status, headers, body = _ask(server, "OPTIONS", "/v1/runtime_config", {})
    assert (status, headers["allow"], body) == (204, "GET, PATCH, OPTIONS", b"")
    assert _ask(server, "OPTIONS", "/v1/nothing", {})[0] == 404


@pytest.mark.parametrize("odd", ["http://x\xff", "http://x\ty"])
def test_an_origin_that_no_head_can_carry_is_not_sent_back(server: ServerProcess, odd: str) -> None:
    status, headers, _ = _ask(server, "GET", "/health", {"Origin": odd, "Cookie": "a=b"})
    assert status == 200
    assert "access-control-allow-origin" not in headers


def test_pages_of_chosen_origins_alone(model_path: Path) -> None:
    """A browser sends no key with what it asks before, and needs no less of an answer that says that one is missing."""
    options = {"allowed_origins": ["https://a.example"], "allowed_methods": ["GET", "POST"],
               "allowed_headers": ["X-Request-Id"], "allow_credentials": True,
               "api_keys": ["secret"]}  # fmt: skip
    mine = {"Origin": "https://a.example"}
    with ServerProcess(str(model_path), **options) as server:
        for headers, refused in (
            ({"Access-Control-Request-Headers": "content-type, x-request-id"}, ""),
            ({"Access-Control-Request-Headers": "authorization"}, "headers"),
            ({"Access-Control-Request-Method": "PATCH", "Access-Control-Request-Headers": ""}, "method"),
            ({"Origin": "https://b.example", "Access-Control-Request-Headers": ""}, "origin"),
        ):
            status, answered, body = _ask(server, "OPTIONS", "/v1/completions", {**PREFLIGHT, **mine, **headers})
            assert (status, body.decode()) == ((400, f"Disallowed CORS {refused}") if refused else (200, "OK"))
            assert answered.get("access-control-allow-origin") == (None if refused == "origin" else "https://a.example")
        _, answered, _ = _ask(server, "POST", "/v1/completions", {**mine, **KEY}, FINE)
        assert answered["access-control-allow-origin"] == "https://a.example"
        assert answered["access-control-allow-credentials"] == "true"
        assert answered["vary"] == "Origin"
        status, answered, _ = _ask(server, "POST", "/v1/completions", mine, FINE)
        assert (status, answered["access-control-allow-origin"]) == (401, "https://a.example")
        assert _ask(server, "OPTIONS", "/v1/completions", {})[0] == 401
        _, answered, _ = _ask(server, "POST", "/v1/completions", {"Origin": "https://b.example", **KEY}, FINE)
        assert "access-control-allow-origin" not in answered


PROMPT_BODY = {"prompt": "the cache", "temperature": 0.0, "max_tokens": 12, "ignore_eos": True, "stream": True}


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
    body = {**PROMPT_BODY, **fields}
    _check_stream(server, body, server.exchange(_request("1.0", body)))


def test_a_stream_is_whole_when_its_client_reads_late(server: ServerProcess) -> None:
    body = {**PROMPT_BODY, "max_tokens": 200, "n": 64}
    _check_stream(server, body, server.exchange(_request("1.0", body), pause=1.0))


def test_an_answer_in_chunks_may_come_before_on_the_same_connection(server: ServerProcess) -> None:
    received = server.exchange(_request("1.1", PROMPT_BODY) + _request("1.0", PROMPT_BODY))
    chunked, end, unframed = received.partition(b"\r\n0\r\n\r\n")
    assert b"\r\ntransfer-encoding: chunked" in chunked
    assert end
    _check_stream(server, PROMPT_BODY, unframed)


def test_whole_answers_and_errors_say_how_long_they_are(server: ServerProcess) -> None:
    for body, status in (({**PROMPT_BODY, "stream": False}, 200), ({**PROMPT_BODY, "max_tokens": -1}, 400)):
        head, _, content = server.exchange(_request("1.0", body)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d" % status)
        assert b"\r\ncontent-length: %d\r\n" % len(content) in head


BODY = json.dumps({"prompt": "the cache", "max_tokens": 3, "temperature": 0.0, "ignore_eos": True}).encode()
WISH = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
PLAIN = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n%b"
CHUNKED_POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n%btransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"


@pytest.mark.parametrize("request_form", [PLAIN, CHUNKED_POST], ids=["plain", "chunked"])
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
