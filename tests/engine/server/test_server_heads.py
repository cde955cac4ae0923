"""What a client may send before its request is known: how much, for how long, and on how many connections."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from server_process import ServerProcess, wait_for

from kvplan_engine.server.http.bounds import WaitingConnections

COMPLETION = json.dumps({"prompt": "the cache", "max_tokens": 2, "temperature": 0.0}).encode()
CHUNKED = b"POST /tokenize HTTP/1.1\r\nhost: x\r\nauthorization: Bearer secret\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def strict(model_path: Path) -> Iterator[ServerProcess]:
    """Waits a second for heads, half a second for the next request, needs a key, has few descriptors. The last test
    kills it.
    """
    options = {"timeout_keep_alive": 0.5, "client_header_timeout": 1.0, "api_keys": ["secret"]}
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80)); "
    with ServerProcess(str(model_path), before=limit, **options) as server:
        yield server


def _head(*, size: int = 0, lines: int = 1, path: str = "/health") -> bytes:
    """A head of ``lines`` headers; ``size``: of all bytes that the parser hands on, four for each header included."""
    headers = [b"host: x", *(b"a%d: b" % number for number in range(lines - 2)), b"z: "]
    missing = size - len(path) - sum(len(header) + 2 for header in headers[:-1]) - len(b"z: \r\n")
    return b"GET %b HTTP/1.1\r\n%b\r\n\r\n" % (path.encode(), b"\r\n".join(headers) + b"x" * missing)


# ---- size


@pytest.mark.parametrize(("head", "status"), [
    (_head(size=64 * 1024), b"200"),
    (_head(size=64 * 1024 + 1), b"431"),
    (_head(lines=100), b"200"),
    (_head(lines=101), b"431"),
    (_head(path="/health?" + "x" * 65_000), b"200"),
    (_head(path="/health?" + "x" * 66_000), b"431"),
], ids=["64KiB", "more", "100-lines", "101-lines", "long-line", "too-long-line"])  # fmt: skip
@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "in-pieces"])
def test_a_head_beyond_64_kib_or_100_lines_is_a_431(
    strict: ServerProcess, head: bytes, status: bytes, is_cut: bool
) -> None:
    pieces = [head[:30_000], head[30_000:60_000], head[60_000:]] if is_cut else [head]
    assert strict.exchange(*pieces, pause=0.01 if is_cut else 0.0).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("beginning", [
    b"GET /health HTTP/1.1\r\nhost: x\r\na: ",
    b"GET /health HTTP/1.1\r\nhost: x\r\n",
    b"GET /",
    CHUNKED + b"5;a",
    CHUNKED + b"0\r\na: ",
], ids=["header", "headers", "path", "chunk-extension", "trailer"])  # fmt: skip
def test_a_head_without_an_end_is_a_431_and_is_not_kept(strict: ServerProcess, beginning: bytes) -> None:
    filling = b"a: b\r\n" * 100_000 if beginning.endswith(b"\n") else b"x" * 600_000
    answer = strict.exchange(beginning, *[filling] * 8)
    assert answer.startswith(b"HTTP/1.1 431")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == 431
    assert strict.get("/health").status == 200


def test_empty_lines_without_an_end_are_refused(strict: ServerProcess) -> None:
    assert strict.exchange(b"\r\n" * 40_000).startswith(b"HTTP/1.1 431")


def test_the_bound_needs_no_key_and_spares_ordinary_errors(strict: ServerProcess) -> None:
    assert strict.post("/v1/completions", {"prompt": "a"}).status == 401
    assert strict.exchange(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n", b"a: b\r\n" * 200).count(b"HTTP/") == 1


def test_requests_before_a_bad_one_are_answered(strict: ServerProcess) -> None:
    """A stream is not interrupted by the error that follows it."""
    data = json.dumps({"prompt": [5], "max_tokens": 60, "stream": True, "ignore_eos": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer secret\r\ncontent-length: %d\r\n\r\n"
    for bad, status in ((_head(lines=101), b"431"), (b"NONSENSE\r\n\r\n", b"400")):
        answer = strict.exchange(head % len(data) + data + bad)
        stream, end, refused = answer.partition(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert stream.count(b'"text":') == 60
        assert end
        assert refused.startswith(b"HTTP/1.1 " + status)


def test_trailers_are_no_headers(strict: ServerProcess) -> None:
    """A key in a trailer would have come behind the check, or before it, by chance."""
    sent = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    chunked = b"%x\r\n%b\r\n0\r\nauthorization: Bearer secret\r\n\r\n" % (len(COMPLETION), COMPLETION)
    assert strict.exchange(sent + chunked).startswith(b"HTTP/1.1 401")


def test_5000_pipelined_requests_are_answered_one_by_one(strict: ServerProcess) -> None:
    answer = strict.exchange(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 5000 + LAST)
    assert answer.count(b"HTTP/1.1 200") == 5001


# ---- time


def test_a_connection_without_a_request_is_closed(strict: ServerProcess) -> None:
    assert strict.exchange() == b""


def test_a_head_that_dribbles_has_one_deadline_as_a_whole(strict: ServerProcess) -> None:
    began = time.monotonic()
    answer = strict.exchange(b"GET /health HTTP/1.1\r\nhost: ", *[b"x"] * 20, pause=0.1)
    assert answer.startswith(b"HTTP/1.1 408")
    assert time.monotonic() - began < 60, "each byte made it longer"


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(strict: ServerProcess) -> None:
    request = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    assert strict.exchange(*[request] * 8, pause=0.2).count(b"HTTP/1.1 200") == 8


def test_a_body_that_nobody_reads_does_not_keep_its_connection(strict: ServerProcess) -> None:
    """It was answered before it was complete: a client could go on for ever."""
    sent = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"
    answer = strict.exchange(sent, *[b"x"] * 20, pause=0.1)
    assert answer.startswith(b"HTTP/1.1 401")


# ---- connections


class _Connection:
    """Remembers that it was closed."""

    is_closed = False

    def close_for_another(self) -> None:
        self.is_closed = True


def test_the_connection_that_has_waited_longest_makes_room() -> None:
    first, second, third = _Connection(), _Connection(), _Connection()
    waiting = WaitingConnections(most_open=2)
    for connection in (first, second, third):
        waiting.add(connection)
    waiting.add(first)  # it had a request meanwhile
    assert waiting.make_room(2)
    assert not second.is_closed
    assert waiting.make_room(3)
    assert [first.is_closed, second.is_closed, third.is_closed] == [False, True, False]
    waiting.remove(third)
    assert waiting.make_room(3)
    assert first.is_closed
    assert not waiting.make_room(3), "all that are left are busy"


def test_silent_connections_lock_nobody_out(strict: ServerProcess) -> None:
    """More of them than the server has descriptors for."""
    with ExitStack() as stack:
        for _ in range(200):
            with suppress(ConnectionResetError):
                stack.enter_context(socket.create_connection(("127.0.0.1", strict.port)))
        for _ in range(3):
            assert strict.get("/health").status == 200
            answer = strict.post("/v1/completions", COMPLETION, {"authorization": "Bearer secret"})
            assert answer.status == 200


# ---- the end


def _is_gone(process: Path) -> bool:
    """Whether a process of ``/proc`` has ended; its parent need not have noticed."""
    try:
        return (process / "stat").read_text(encoding="utf-8").rpartition(") ")[2][0] == "Z"
    except FileNotFoundError:
        return True


def test_the_engine_does_not_outlive_its_server(strict: ServerProcess) -> None:
    info = strict.request("GET", "/server_info", headers={"authorization": "Bearer secret"}).json
    strict.end(signal.SIGKILL)
    wait_for(lambda: _is_gone(Path(f"/proc/{info['engine_pid']}")), bool)
