"""Keys, limits, draining, and the end of the engine's process."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from server_process import HttpAnswer, ServerProcess, decoded_events, wait_for

LONG: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 8000, "ignore_eos": True, "temperature": 0.0}
KEY = {"authorization": "Bearer secret-1"}


@pytest.fixture(scope="module")
def limited(long_model_path: Path) -> Iterator[ServerProcess]:
    """Two keys, one seat, room for two in the queue. The last test kills its engine."""
    options = {
        "dead_engine_seconds": 600.0,
        "api_keys": ["secret-1", "secret-2"],
        "max_num_queued_reqs": 2,
        "max_num_queued_tokens": 40,
        "max_body_bytes": 4096,
    }
    with ServerProcess(str(long_model_path), {"max_num_seqs": 1}, **options) as server:
        yield server


class Held:
    """Streams that are open and whose clients read nothing: they hold seats and places in the queue."""

    def __init__(self, server: ServerProcess, headers: str = "") -> None:
        self._server = server
        self._headers = headers
        self.sockets: list[socket.socket] = []

    def open(self, body: dict[str, Any] | None = None) -> socket.socket:
        data = json.dumps({**(body or LONG), "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\n{self._headers}content-length: {len(data)}\r\n\r\n"
        connection = socket.create_connection(("127.0.0.1", self._server.port))
        connection.sendall(head.encode() + data)
        self.sockets.append(connection)
        return connection

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self.sockets:
            connection.close()


# ---- keys


def test_without_a_right_key_nothing_is_answered(limited: ServerProcess) -> None:
    wrong = ("secret-1", "Bearer secret-3", "Bearer ", "Basic secret-1", "Bearer secret-1x")
    for headers in ({}, *({"authorization": key} for key in wrong)):
        for path in ("/v1/completions", "/tokenize", "/reset_prefix_cache"):
            answer = limited.post(path, {"prompt": "the"}, headers)
            assert answer.status == 401, (path, headers)
            assert answer.error["message"] == "The API key is missing or wrong."


def test_every_key_lets_in_and_monitors_need_none(limited: ServerProcess) -> None:
    for key in ("secret-1", "secret-2"):
        with openai.OpenAI(base_url=limited.url + "/v1", api_key=key) as client:
            assert len(list(client.models.list())) == 1
    other = openai.OpenAI(base_url=limited.url + "/v1", api_key="other", max_retries=0)
    with other as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    assert [limited.get(path).status for path in ("/health", "/ping", "/load", "/version", "/metrics")] == [200] * 5


# ---- limits


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(limited: ServerProcess) -> None:
    answer = limited.post("/v1/completions", {"prompt": "x" * 5000}, KEY)
    assert answer.status == 413
    assert "larger than 4,096 bytes" in answer.error["message"]
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer secret-1\r\n"
    with socket.create_connection(("127.0.0.1", limited.port)) as connection:
        connection.sendall(head + b"content-length: 1000000000\r\n\r\n{")
        connection.settimeout(120)
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    with socket.create_connection(("127.0.0.1", limited.port)) as connection:  # of a length that nobody announced
        chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
        connection.sendall(head + b"transfer-encoding: chunked\r\n\r\n" + chunk + chunk)
        connection.settimeout(120)
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_a_full_queue_refuses_and_asks_clients_not_to_retry(limited: ServerProcess) -> None:
    with Held(limited, "authorization: Bearer secret-1\r\n") as held:
        held.open()
        wait_for(lambda: limited.metric("vllm:num_requests_running"), lambda number: number == 1)
        held.open()
        held.open()
        wait_for(lambda: limited.metric("vllm:num_requests_waiting"), lambda number: number == 2)
        refused = limited.post("/v1/completions", LONG, KEY)
        assert refused.status == 503
        assert "2 requests are queued" in refused.error["message"]
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["x-should-retry"] == "false"
        assert limited.metric("vllm:admission_rejections_total", reason="max_num_queued_reqs") == 1
    wait_for(lambda: limited.metric("vllm:num_requests_running"), lambda number: number == 0)
    assert limited.metric("vllm:num_requests_waiting") == 0
    assert limited.post("/v1/completions", {**LONG, "max_tokens": 2}, KEY).status == 200, "the places are free again"


def test_queued_tokens_are_limited_too(limited: ServerProcess) -> None:
    with Held(limited, "authorization: Bearer secret-1\r\n") as held:
        held.open()
        wait_for(lambda: limited.metric("vllm:num_requests_running"), lambda number: number == 1)
        held.open({**LONG, "prompt": list(range(30))})
        wait_for(lambda: limited.metric("vllm:num_requests_waiting"), lambda number: number == 1)
        refused = limited.post("/v1/completions", {**LONG, "prompt": list(range(30))}, KEY)
        assert refused.status == 503
        assert "60 prompt tokens would be queued, of 40 allowed" in refused.error["message"]
        assert limited.metric("vllm:admission_rejections_total", reason="max_num_queued_tokens") == 1


# ---- clients that do not read


@pytest.fixture(scope="module")
def patient(long_model_path: Path) -> Iterator[ServerProcess]:
    """Gives clients that do not read a second, and requests in flight all the time they need. The last test ends it."""
    with ServerProcess(str(long_model_path), dead_client_seconds=1, shutdown_timeout=600.0) as server:
        yield server


def test_a_client_that_never_reads_is_cut_off(patient: ServerProcess) -> None:
    """Its stream waits for it, then the kernel gives it up and its answers are aborted long before their ends."""
    with Held(patient) as held:
        held.open({**LONG, "n": 60})
        aborted = {"finished_reason": "abort"}
        wait_for(lambda: patient.metric("vllm:request_success_total", **aborted), lambda number: number == 60)
        wait_for(lambda: patient.get("/load").json, lambda load: load == {"server_load": 0})
        assert patient.wait_until_idle()["num_used_blocks"] == 0


# ---- the end


def _in_background(work: Any) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    return thread, results


def test_sigterm_lets_requests_in_flight_finish_and_refuses_new_ones(patient: ServerProcess) -> None:
    """The request in flight is one whose client has sent half of it, so it lasts until the test sends the rest."""
    data = json.dumps({**LONG, "n": 8, "max_tokens": 30, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data)
    with socket.create_connection(("127.0.0.1", patient.port)) as connection:
        connection.sendall(head + data[:20])
        wait_for(lambda: patient.get("/load").json, lambda load: load == {"server_load": 1})
        patient.process.send_signal(signal.SIGTERM)
        wait_for(lambda: patient.get("/health").status, lambda status: status == 503)
        refused = patient.post("/v1/completions", LONG)
        assert refused.status == 503
        assert "shutting down" in refused.error["message"]
        connection.sendall(data[20:])
        received = b""
        connection.settimeout(120)
        while not received.endswith(b"0\r\n\r\n"):
            received += connection.recv(1 << 16)
        assert received.count(b'"finish_reason":"length"') == 8
        assert b"[DONE]" in received
    assert patient.process.wait(120) == 0


def test_a_killed_engine_is_said_to_everybody_and_ends_the_server(limited: ServerProcess) -> None:
    """To a stream and to an answer, of which one runs and one waits. Exit code 1: a supervisor starts it anew."""
    engine = limited.request("GET", "/server_info", headers=KEY).json["engine_pid"]
    streamed, stream_results = _in_background(lambda: limited.post("/v1/completions", {**LONG, "stream": True}, KEY))
    waiting, whole_results = _in_background(lambda: limited.post("/v1/completions", LONG, KEY))
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    wait_for(lambda: [limited.metric(name) for name in names], lambda numbers: numbers == [1, 1])
    os.kill(engine, signal.SIGKILL)
    wait_for(lambda: limited.get("/health").status, lambda status: status == 503)
    refused: HttpAnswer = limited.post("/v1/completions", LONG, KEY)
    assert refused.status == 503
    assert "The engine process was ended by SIGKILL." in refused.error["message"]
    for thread in (streamed, waiting):
        thread.join(120)
    (stream,), (whole,) = stream_results, whole_results
    *_, error, _ = decoded_events(stream.body)
    assert "ended by SIGKILL" in error["error"]["message"]
    assert whole.status == 503
    assert limited.end() == 1
    assert any("the engine process has ended" in line for line in limited.lines)
