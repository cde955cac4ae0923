"""Clients that leave, never read, stop in the middle, or send nonsense or huge bodies: others are served."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from object_counts import ObjectCounts
from server_process import ServerProcess
from storms import request_head, storm

from kvplan_engine.server.openai import parameters
from kvplan_engine.server.openai.parameters import MOST_CONTAINERS, MOST_VALUES, is_decoded_soon

pytestmark = pytest.mark.xdist_group("server")  # one server for all who share it

FINE = {"prompt": "the cache", "max_tokens": 3}


def _check_storm(server: ServerProcess, number: int) -> None:
    fates = asyncio.run(storm(server.port, number))
    assert fates["left"] > number / 6
    assert fates["stayed"] > number / 2
    stats = server.wait_until_idle()  # which checks the invariants of the pool
    assert stats["num_used_blocks"] == 0
    assert stats["num_free_blocks"] == stats["num_blocks"]
    assert stats["num_requests_running"] == stats["num_requests_waiting"] == stats["num_requests_swapped"] == 0
    assert server.complete(**FINE)["usage"]["completion_tokens"] <= 3


@contextmanager
def _small_budget(server: ServerProcess) -> Iterator[None]:
    """Steps of 64 tokens: prompts are computed in chunks, the last of which may be one token."""
    before = server.get("/v1/runtime_config").json["config"]["max_num_batched_tokens"]
    try:
        assert server.request("PATCH", "/v1/runtime_config", {"max_num_batched_tokens": 64}).status == 200
        yield
    finally:
        assert server.request("PATCH", "/v1/runtime_config", {"max_num_batched_tokens": before}).status == 200


@pytest.mark.slow
def test_no_block_is_lost_in_a_storm(server: ServerProcess, exhaustive: bool) -> None:
    with _small_budget(server):
        _check_storm(server, 10_000 if exhaustive else 800)


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_whose_client_left_is_aborted(server: ServerProcess, stream: bool) -> None:
    before = server.metric("vllm:request_success_total", finished_reason="abort")
    data = json.dumps({"prompt": [9] * 20, "max_tokens": 200, "n": 50, "ignore_eos": True, "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(request_head(len(data)) + data)
        while not server.metric("vllm:num_requests_running"):
            time.sleep(0.005)
    assert server.wait_until_idle()["num_used_blocks"] == 0
    assert server.metric("vllm:request_success_total", finished_reason="abort") == before + 50


@pytest.mark.parametrize(("body", "says"), [
    (b"{", "not valid"),
    (b"", "not valid"),
    (b"\xff\xfe", "not valid"),
    (b"[]", "Expected `object`"),
    (b'{"prompt": "a", "max_tokens": "ten"}', "$.max_tokens"),
    (b'{"prompt": "a", "max_tokens": 1e400}', "not valid"),
    (b'{"prompt": ["a", 1]}', "mixes token ids"),
    (b'{"prompt": []}', "missing or empty"),
    (b'{"prompt": [[]]}', "empty"),
    (b'{"prompt": ""}', "empty"),
    (b'{"prompt": [99999]}', "outside the vocabulary"),
    (b'{"prompt": [-1]}', "outside the vocabulary"),
    (b'{"prompt": "a", "stop": [""]}', "must not be empty"),
    (b'{"prompt": "a", "seed": 99999999999999999999}', "'seed' must fit 64 bits"),
    (b'{"prompt": "a", "top_k": 99999999999999999999}', "'top_k' must fit 64 bits"),
    (b'{"prompt": "a", "logprobs": 21}', "'logprobs' must lie in [0, 20]"),
    (b'{"prompt": "a", "request_id": "a\\r\\nset-cookie: b"}', "printable ASCII"),
    (b'{"prompt": "\\ud800"}', "not valid"),
    (b'{"prompt": "a", "stream_options": {"include_usage": true}}', "'stream_options' is for requests with"),
    (b'{"prompt": "a", "metadata": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not valid"),
])  # fmt: skip
def test_nonsense_is_a_400_that_says_so(server: ServerProcess, body: bytes, says: str) -> None:
    answer = server.post("/v1/completions", body)
    assert answer.status == 400
    assert says in answer.error["message"], answer.error["message"]


@pytest.mark.parametrize("fields", [
    {"temperature": 1e300}, {"temperature": 1e-4}, {"repetition_penalty": 1e300}, {"repetition_penalty": 1e-300},
    {"top_p": 1e-9}, {"min_p": 1.0}, {"top_k": 10**9}, {"logit_bias": {"5": -100, "6": 100}}, {"seed": -(2**63)},
    {"presence_penalty": 2, "frequency_penalty": -2}, {"stop_token_ids": list(range(384)), "min_tokens": 3},
])  # fmt: skip
def test_extreme_values_are_answered(server: ServerProcess, fields: dict[str, Any]) -> None:
    answer = server.complete("the cache", **{"temperature": 1.0, "max_tokens": 4, "logprobs": 2, **fields})
    assert 1 <= answer["usage"]["completion_tokens"] <= 4


def test_a_body_is_read_whatever_its_content_type(server: ServerProcess) -> None:
    answer = server.post("/v1/completions", FINE, {"content-type": "text/plain"})
    assert answer.status == 200


@pytest.mark.parametrize(("method", "path", "status"), [
    ("GET", "/v1/completions", 405), ("POST", "/v1/models", 405), ("GET", "/nothing", 404),
    ("GET", "/v1/models/x", 404),
])  # fmt: skip
def test_other_paths_and_methods_are_said(server: ServerProcess, method: str, path: str, status: int) -> None:
    answer = server.request(method, path)
    assert answer.status == status
    assert answer.error["code"] == status


def test_a_client_that_never_reads_keeps_nobody_waiting(server: ServerProcess) -> None:
    """Its tokens gather in memory, bounded by the context; its answer is aborted when it goes."""
    data = json.dumps({"prompt": [3], "max_tokens": 250, "n": 64, "ignore_eos": True, "stream": True}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(request_head(len(data)) + data)
        for _ in range(3):
            assert server.complete(**FINE)["choices"]
        assert server.wait_until_idle()["num_used_blocks"] == 0, "the engine waits for a client"
    assert server.complete(**FINE)["choices"]


def test_half_a_request_keeps_nobody_waiting(server: ServerProcess) -> None:
    with (
        socket.create_connection(("127.0.0.1", server.port)) as body,
        socket.create_connection(("127.0.0.1", server.port)) as head,
        socket.create_connection(("127.0.0.1", server.port)),
    ):
        body.sendall(request_head(1000) + b'{"prompt": ')
        head.sendall(b"POST /v1/compl")
        assert server.complete(**FINE)["choices"]
    assert server.wait_until_idle()["num_used_blocks"] == 0


def test_500_streams_at_once_are_all_served(server: ServerProcess) -> None:
    async def stream(number: int) -> int:
        data = json.dumps({"prompt": [number % 384], "max_tokens": 3, "stream": True, "ignore_eos": True}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request_head(len(data)) + data)
        received = await reader.readuntil(b"0\r\n\r\n")
        writer.close()
        return received.count(b'"text":')

    async def all_streams() -> list[int]:
        return await asyncio.gather(*map(stream, range(500)))

    assert asyncio.run(all_streams()) == [3] * 500
    assert server.wait_until_idle()["num_used_blocks"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    {"async_scheduling": True},
    {"swap_space": "4MiB", "preemption_mode": "swap", "block_size": 4},
], ids=["steps-ahead", "swapping"])  # fmt: skip
def test_no_block_is_lost_where_little_fits(model_path: Path, settings: dict[str, Any], exhaustive: bool) -> None:
    """A pool in which sequences preempt each other while clients leave; the longest request has 170 tokens."""
    with ServerProcess(str(model_path), {"max_model_len": 176, **settings}) as server:
        memory = server.get("/server_info").json["memory"]
        spared = (memory["num_blocks"] - 600 // memory["block_size"]) * memory["block_bytes"]
        share = 0.9 - spared / memory["device_total_bytes"]
        answer = server.request("PATCH", "/v1/runtime_config", {"gpu_memory_utilization": share})
        assert answer.status == 200, answer.body
        _check_storm(server, 1500 if exhaustive else 150)
        assert server.stats()["num_preemptions"] > 0


@pytest.mark.slow
def test_objects_do_not_grow_with_requests(model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waves of the same requests until one leaves both processes as they were: a leak grows in every wave.

    Without a prefix cache, which would fill the whole pool.
    """
    number, counts = 200, ObjectCounts(tmp_path, monkeypatch)
    with ServerProcess(str(model_path), {"enable_prefix_caching": False}) as server:
        _check_storm(server, number)
        before, growing, growth = counts.of(server), {"api", "engine"}, []
        while growing:
            assert len(growth) < 8, f"objects more after each {number} requests: {growth}"
            _check_storm(server, number)
            after = counts.of(server)
            growth.append({name: after[name] - before[name] for name in after})
            growing -= {name for name in growing if growth[-1][name] <= number // 5}
            before = after


_ESCAPED = rb"[,\\" * 700_000 + rb"\",["
_SLICE = b'["' + rb"\\" * 131_071 + rb"x\""  # its last two bytes lie in two slices


@pytest.mark.parametrize(("body", "is_soon"), [
    (b'{"a": [1, 2, {"b": "c"}]}', True),
    (b"[" + b"0," * (MOST_VALUES - 1) + b"0]", True),
    (b"[" + b"0," * MOST_VALUES + b"0]", False),
    (b"[" + b"[]," * (MOST_CONTAINERS - 2) + b"[]]", True),
    (b"[" + b"[]," * (MOST_CONTAINERS - 1) + b"[]]", False),
    (b"[" * 100_000 + b"]" * 100_000, False),
    (b'["' + b"[,{" * 700_000 + b'"]', True),
    (b'["' + _ESCAPED + b'", "' + _ESCAPED + b'"]', True),
    (_SLICE + b"[" * 70_000 + b'"]', True),
    (_SLICE + b'", ' + b"[]," * 70_000 + b'"[,["]', False),
    (b"[" + b'"[",' * (MOST_VALUES - 1) + b'""]', True),
], ids=[
    "small", "values", "values+1", "lists", "lists+1", "deep", "text", "escapes", "cut", "cut-then-lists", "texts",
])  # fmt: skip
def test_only_what_takes_long_to_decode_is_large(body: bytes, is_soon: bool) -> None:
    assert is_decoded_soon(body) is is_soon


def _slowly_outside_texts(body: bytes) -> str:
    """One character after the other."""
    outside, is_in_text, is_escaped = "", False, False
    for letter in body.decode():
        if not is_in_text:
            is_in_text = letter == '"'
            outside += "" if is_in_text else letter
        elif is_escaped:
            is_escaped = False
        else:
            is_in_text, is_escaped = letter != '"', letter == "\\"
    return outside


def test_texts_are_told_apart_wherever_a_body_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "_SLICE_BYTES", 7)
    draw = random.Random(3)
    for _ in range(300):
        text = "".join(draw.choice('\\"[{,x') for _ in range(draw.randrange(1, 60)))
        body = json.dumps([text, {"a": 0}, []] * draw.randrange(1, 6)).encode()
        assert b"".join(parameters._outside_texts(body)).decode() == _slowly_outside_texts(body)
