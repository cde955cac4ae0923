"""Pages of other servers: what a browser asks before it sends, and what it must read before it shows an answer."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import pytest
from server_process import ServerProcess

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
