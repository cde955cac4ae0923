"""A load against servers that mean harm: bounded in bytes, time, depth and tokens, one sentence, never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer, running
from hostile_server import Answer, Hostile, document, dribble, endless, hostile, raw, stream

from kvplan.cli import main
from kvplan.load.options import LoadOptions
from kvplan.load.run import run_load
from kvplan.load.sending import Sender, Sending
from kvplan.load.session import find_target
from kvplan.load.tolerance import Tolerance
from kvplan.runs.columns import Row

OK = b"HTTP/1.1 200 OK\r\n\r\n"
HUGE = 99_999_999_999_999


def chunk(completion: object, prompt: object = 8, finish: str | None = None) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {"choices": [{"text": " w", "finish_reason": finish}], "usage": usage}


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (stream(chunk(HUGE)), "counts 99,999,999,999,999 tokens, but 4 were asked for"),
        (stream(chunk(10**400)), "a number of more than 18 digits of tokens, but 4 were asked for"),
        (raw(OK, b'data: {"usage": {"completion_tokens": ' + b"9" * 5000 + b"}}\n\n"), "a chunk could not be read"),
        (stream(chunk(-1)), "counts -1 tokens, but 4 were asked for"),
        (stream(chunk(3), chunk(1)), "counts 3 tokens, and later only 1"),
        (stream(chunk(1, prompt=HUGE)), "counts 99,999,999,999,999 tokens in the prompt of a request of"),
        (stream({"choices": [], "usage": {"completion_tokens": HUGE}}), "but 4 were asked for"),
        (stream({"choices": [{"text": "w", "token_ids": [0] * 1000}]}), "counts 1,000 tokens, but 4 were asked for"),
        (endless(OK, b"a" * 65536), "more bytes than the tokens asked for can have"),
        (endless(b"HTTP/1.1 200 OK\r\nX: ", b"a" * 65536), "more bytes than the tokens asked for can have"),
        (endless(b"HTTP/1.1 500 X\r\n\r\n", b"a" * 65536), "more bytes than the tokens asked for can have"),
        (stream(b"data: " + b"[" * 100_000), "a chunk could not be read"),
        (stream(b'data: {"error": ' + b'{"error":' * 100_000), "a chunk could not be read"),
        (raw(b"HTTP/1.1 500 X\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100_000), "500: [[["),
        (raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 30 + b"\r\n"), "is not HTTP"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000000000\r\n\r\ndata: {}\n\n"), "closed the connection"),
    ],
)
def test_what_cannot_be_is_a_failed_request(answer: Answer, sentence: str) -> None:
    with hostile({"/v1/completions": answer}, after=2) as server:
        row = _row(server, num_prompts=2, max_concurrency=1, output_len="4", request_timeout=20.0)
    assert (row["status"], row["completed"], row["failed"]) == ("failed", 0, 2)
    assert str(row["error"]).startswith("2 of 2 requests: ") and sentence in str(row["error"])


def _row(server: Hostile, **given: Any) -> Row:
    options = LoadOptions(url=server.url, **given)
    target = find_target(options)
    timeout = options.request_timeout
    return run_load(target, options.traffic(), timeout_seconds=timeout, with_metrics=False).row({})


def test_a_byte_now_and_then_ends_with_its_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hostile({"/v1/completions": dribble(OK)}, after=2) as server:
        words = ("--num-prompts", "1", "--request-timeout", "0.5", "--out", str(tmp_path / "run"))
        assert main(["load", server.url, *words]) == 1
    assert "1 of 1 requests failed: 1 x no end within 0.5 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("models", "sentence"),
    [
        (endless(OK, b"a" * 65536), "has more than 16.00 MiB"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"[" * 200_000), "names no model"),
        (document('{"data": [{"id": %s}]}' % ("9" * 5000)), "names no model"),
        (document({"data": [{"id": "m" * 100_000}]}), "names no model"),
        (document({"data": [{"id": "m", "max_model_len": -5}]}), "did not serve"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"), "does not speak HTTP"),
        (raw(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000 + b"\r\n"), "does not speak HTTP"),
    ],
)
def test_a_list_of_models_that_cannot_be(models: Answer, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with hostile({"/v1/models": models}) as server:
        assert main(["load", server.url, "--request-timeout", "5"]) == 1
    talk = capsys.readouterr().err
    assert (talk.startswith("error: ") and sentence in talk) or "refuses: 404" in talk


def test_a_server_without_a_tokenizer_is_told_from_one_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    body = b'{"error": {"message": "Prompts must be token ids: this model has no tokenizer."}}'
    refusal = raw(b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    with hostile({"/v1/completions": refusal}) as server:
        assert main(["load", server.url]) == 1
    talk = capsys.readouterr().err
    assert "this model has no tokenizer.\nhint: kvplan load sends text" in talk


def test_an_answer_that_nobody_asked_for_is_given_to_nobody() -> None:
    """Two answers to one request: the second must not stand for the answer to the next request."""
    served = stream(chunk(1), chunk(2), chunk(3), chunk(4, finish="length"), b"data: [DONE]")
    body = b"".join([*served(b"")][1:])
    one = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with hostile({"/v1/completions": raw(one + one, keeps=True)}, after=2) as server:
        row = _row(server, num_prompts=6, max_concurrency=1, output_len="4")
        assert row["completed"] == 6
        assert server.num_completions == 8, "each request was answered for itself"


@pytest.mark.parametrize(("tolerated", "code"), [((), 1), (("--max-failed", "1"), 0)])
def test_more_failed_requests_than_may_are_exit_code_1(
    tolerated: tuple[str, ...], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = FakeServer(refuse=lambda number: 503 if number == 4 else None)
    with running(server):
        words = ("--num-prompts", "8", "--max-concurrency", "1", "--output-len", "2", "--json")
        assert main(["load", server.url, *words, *tolerated, "--out", str(tmp_path / "run")]) == code
    talk = capsys.readouterr().err
    assert ("error: 1 of 8 requests failed: 1 x 503: The engine is busy." in talk) == (code == 1)


@pytest.mark.parametrize(
    ("text", "num_failed", "allows"),
    [("0", 0, True), ("0", 1, False), ("3", 3, True), ("3", 4, False), ("1%", 2, True), ("1%", 3, False)],
)
def test_a_tolerance_is_a_number_or_a_share(text: str, num_failed: int, allows: bool) -> None:
    assert Tolerance.parse(text).allows(num_failed, 200) is allows


def test_a_sender_that_is_stopped_before_it_begins_sends_nothing() -> None:
    with running(FakeServer(ttft=30)) as server:
        server.ttft = 0.0
        options = LoadOptions(url=server.url, users=2, duration=60)
        target = find_target(options)
        server.served.clear()
        sender = Sender(Sending(target, options.traffic(), 60.0), lambda sent: None)
        sender.stop()
        sent = sender.run()
    assert sent.interrupted and not sent.records and not server.served


@pytest.mark.parametrize("phase", ["models", "probe", "running", "clients", "metrics"])
def test_ctrl_c_ends_a_load_in_any_phase(phase: str, tmp_path: Path) -> None:
    slow = dribble(OK, b"\n")
    path = {"models": "/v1/models", "metrics": "/metrics"}.get(phase, "/v1/completions")
    words = [
        "--users",
        "2",
        "--duration",
        "60",
        "--output-len",
        "4",
        "--num-clients",
        "2" if phase == "clients" else "1",
    ]
    with hostile({path: slow}, after=0 if phase == "probe" else 2) as server:
        command = [sys.executable, "-m", "kvplan", "load", server.url, *words, "--out", str(tmp_path / "run")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        least = {"probe": 1, "running": 4, "clients": 4, "metrics": 2, "models": 0}[phase]
        while server.num_completions < least or not server.num_connections:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGINT)
        _, talk = process.communicate(timeout=30)
    assert process.returncode == 130, talk
    assert "Traceback" not in talk
