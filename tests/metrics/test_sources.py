"""Readings over HTTP: what is asked, what cannot be read, and servers that mean harm: an end to bytes and time."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import closing

import pytest
from hostile_server import Answer, document, dribble, endless, hostile, raw
from metric_pages import LLAMACPP_PAGE, TRTLLM_ITERATIONS, TRTLLM_PAGE, vllm_page

from kvplan.errors import KvplanError, UsageError
from kvplan.metrics.http import PersistentConnection, ServerAddress, unreachable
from kvplan.metrics.limits import limits_in
from kvplan.metrics.page import read_page
from kvplan.metrics.prometheus import parse_samples
from kvplan.metrics.reading import ServerReading
from kvplan.metrics.source import MetricsSource, read_iterations, with_slots


def test_a_server_is_read_over_one_connection() -> None:
    with hostile({"/metrics": document(vllm_page())}) as server, MetricsSource(f"{server.url}/v1") as source:
        assert source.read().kv_cache_usage == 0.42
        assert source.read().seconds > 0


def test_the_settings_that_a_server_tells() -> None:
    info = {"vllm_config": {"scheduler_config": {"max_num_seqs": 256, "max_num_batched_tokens": 8192}}}
    models = {"data": [{"id": "m", "max_model_len": 4096}]}
    pages = {"/server_info?config_format=json": document(info), "/v1/models": document(models)}
    with hostile(pages) as server, MetricsSource(server.url) as source:
        limits = source.limits("vllm")
    assert (limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_model_len) == (256, 8192, 4096)


@pytest.mark.parametrize(
    ("told", "kernels"),
    [("cpu-avx512", "cpu-avx512"), ("reference", "reference"), ({"attention": "flash"}, None), ("a b; c", None)],
)
def test_the_kernels_of_a_server_are_known_if_it_tells_a_name(told: object, kernels: str | None) -> None:
    pages = {"/server_info?config_format=json": document({"model": {"kernels": told}})}
    with hostile(pages) as server, MetricsSource(server.url) as source:
        assert source.limits("kvplan").kernels == kernels


def test_tensorrt_llms_json_is_emptied_only_where_there_is_no_other_page() -> None:
    pages = {"/metrics": document(TRTLLM_ITERATIONS), "/prometheus/metrics": document(TRTLLM_PAGE)}
    with hostile(pages) as server, MetricsSource(server.url) as source:
        assert source.read().max_num_seqs == 64
        source.read()
    assert server.asked == ["/metrics", "/prometheus/metrics", "/prometheus/metrics"]
    with hostile({"/metrics": pages["/metrics"]}) as server, MetricsSource(server.url) as source:
        assert source.read().num_waiting == 3


@pytest.mark.parametrize(
    ("pages", "key", "sentence"),
    [
        ({}, None, "answers 404 instead of metrics"),
        ({"/metrics": document("node_load1 3\n")}, None, "no engine that is known"),
        ({"/metrics": document("no", 401)}, "wrong", "refuses the API key"),
        ({"/metrics": document("[]")}, None, "no iteration statistics yet"),
    ],
)
def test_what_cannot_be_read_is_said(pages: dict[str, Answer], key: str | None, sentence: str) -> None:
    with hostile(pages) as server, MetricsSource(server.url, key) as source, pytest.raises(KvplanError) as caught:
        source.read()
    assert sentence in caught.value.message
    assert caught.value.hint
    assert set(server.authorizations) == {b"" if key is None else b"Bearer " + key.encode()}


def test_no_server_is_said_with_a_hint() -> None:
    with pytest.raises(KvplanError, match="No server listens") as caught, MetricsSource("127.0.0.1:1") as source:
        source.read()
    assert caught.value.hint


def _untrusted() -> Exception:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    return error


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (_untrusted(), "certificate of https://h is not trusted: self-signed"),
        (ssl.SSLError(1, "wrong version number"), "No secure connection"),
        (socket.gaierror(-2, "unknown"), "no host called h"),
        (TimeoutError(), "does not answer in time"),
        (http.client.BadStatusLine("x"), "does not speak HTTP"),
        (OSError(101, "Network is unreachable"), "cannot be reached"),
    ],
)
def test_why_a_server_cannot_be_reached_is_one_sentence_and_a_hint(error: Exception, sentence: str) -> None:
    said = unreachable(ServerAddress.parse("https://h"), error)
    assert sentence in said.message
    assert said.hint


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://h:8000/v1/", "http://h:8000"),
        ("https://h/team/v1", "https://h/team"),
        ("http://[::1]:9", "http://[::1]:9"),
    ],
)
def test_addresses(text: str, url: str) -> None:
    assert ServerAddress.parse(text).url == url


@pytest.mark.parametrize("text", ["", "ftp://h", "http://", "h:port", "http://h:99999999", "http://.h", "h" * 64])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        ServerAddress.parse(text)


def test_slots_of_llama_server_are_asked_with_each_reading_until_it_refuses_them() -> None:
    slots = [{"id": 0, "n_ctx": 512, "is_processing": True, "n_prompt_tokens": 40}]
    pages = {"/metrics": document(LLAMACPP_PAGE), "/slots": document(slots)}
    with hostile(pages) as server, MetricsSource(server.url) as source:
        assert [source.read().kv_cache_used_tokens for _ in range(2)] == [40, 40]
        assert server.asked.count("/slots") == 2
    refusing = {"/metrics": document(LLAMACPP_PAGE), "/slots": document("not enabled", 501)}
    with hostile(refusing) as server, MetricsSource(server.url) as source:
        assert [source.read().kv_cache_used_tokens for _ in range(2)] == [None, None]
        assert server.asked.count("/slots") == 1


OK = b"HTTP/1.1 200 OK\r\n"


def ask(answer: Answer, timeout: float = 10.0) -> object:
    with (
        hostile({"/metrics": answer}) as server,
        closing(PersistentConnection(ServerAddress.parse(server.url), timeout_seconds=timeout)) as connection,
    ):
        return connection.get("/metrics")


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (endless(OK + b"\r\n", b"a" * 65536), "has more than 16.00 MiB"),
        (endless(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"a" * 65536 + b"\r\n"), "16.00 MiB"),
        (endless(b"HTTP/1.1 100 X\r\n\r\n", b"HTTP/1.1 100 X\r\nA: " + b"a" * 60_000 + b"\r\n\r\n"), "16.00 MiB"),
        (endless(OK + b"X: ", b"a" * 65536), "does not speak HTTP"),
        (endless(OK, b"A: b\r\n" * 1000), "does not speak HTTP"),
        (raw(OK + b"Content-Length: 100000000000000\r\n\r\nabc"), "does not speak HTTP"),
        (raw(OK + b"Content-Length: 4\r\n\r\nabc"), "does not speak HTTP"),
        (raw(OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\nabc"), "does not speak HTTP"),
    ],
)
def test_an_answer_without_end_or_measure_is_refused(answer: Answer, sentence: str) -> None:
    with pytest.raises(KvplanError, match=sentence):
        ask(answer)


@pytest.mark.parametrize(
    "start", [b"HTTP", OK, OK + b"X: ", OK + b"Content-Length: 100\r\n\r\n", OK + b"Transfer-Encoding: chunked\r\n\r\n"]
)
def test_a_byte_now_and_then_ends_with_the_whole_time(start: bytes) -> None:
    began = time.monotonic()
    with pytest.raises(KvplanError, match="does not answer in time"):
        ask(dribble(start, b"0"), timeout=0.4)
    assert time.monotonic() - began < 5, "each byte came within the time of a read"


def test_a_key_that_no_header_can_have() -> None:
    with pytest.raises(UsageError, match="characters that no header can have"):
        PersistentConnection(ServerAddress.parse("127.0.0.1:9"), "a\r\nX: b")


def test_more_series_or_engines_than_any_server_has() -> None:
    line = 'vllm:num_requests_running{{engine="{0}",model_name="m{0}"}} 1'
    with pytest.raises(KvplanError, match="more than 20,000 series"):
        read_page("\n".join(line.format(number) for number in range(20_001)))
    with pytest.raises(KvplanError, match="more than 1,000 engines"):
        read_page("\n".join(line.format(number) for number in range(1_001)))
    reading = read_page("\n".join(line.format(number) for number in range(1_000)))
    assert reading is not None and (reading.num_running, len(reading.engines)) == (1000, 1000)
    assert len(reading.model_names) == 100
    assert all(engine.num_running == 1 for engine in reading.engines.values())


def test_a_long_label_is_read_in_its_length() -> None:
    began = time.monotonic()
    parse_samples("vllm:x{" + "a" * 300_000 + "} 1\n" + "vllm:x{" + 'a="b\\\\"' * 20_000 + "} 1")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("usage", ["-1", "1e9", "NaN", "+Inf"])
def test_a_usage_that_is_no_share_is_not_told(usage: str) -> None:
    reading = read_page(f"vllm:num_requests_running 1\nvllm:kv_cache_usage_perc {usage}")
    assert reading is not None and reading.kv_cache_usage is None and reading.kv_cache_usage_highest is None


def test_counts_that_are_none_are_not_told() -> None:
    assert limits_in({"max_num_seqs": 10**400, "max_model_len": -1}).max_num_seqs is None
    slots = with_slots(ServerReading("llamacpp", 0.0), [{"n_ctx": 10**400, "n_prompt_tokens": 10**400,
                                                         "is_processing": True}])  # fmt: skip
    assert (slots.slot_tokens, slots.kv_cache_used_tokens) == (None, None)
    pool = {"maxNumBlocks": -4, "usedNumBlocks": 1, "tokensPerBlock": 32}
    found = read_iterations([TRTLLM_ITERATIONS[-1] | {"kvCacheStats": pool}])
    assert found is not None and found.cache.num_blocks is None and found.kv_cache_usage is None


def test_kvplans_own_server_tells_its_device() -> None:
    told = limits_in(
        {"model": {"device": "cuda:0", "dtype": "bfloat16"}, "memory": {"device_total_bytes": 734_003_200}}
    )
    assert (told.device, told.device_memory_bytes, told.dtype) == ("cuda", 734_003_200, "bfloat16")
    other = limits_in({"device": "cuda", "dtype": "auto", "model": "x"})
    assert (other.device, other.device_memory_bytes, other.dtype) == (None, None, None)


def test_settings_nested_too_deeply_are_none() -> None:
    deep = document('{"a":' * 5000 + "1" + "}" * 5000)
    answers = {"/metrics": document(vllm_page()), "/server_info?config_format=json": deep}
    with hostile(answers) as server, MetricsSource(server.url) as source:
        assert source.limits(source.read().engine).max_num_seqs is None


def test_ctrl_c_ends_one_reading_of_a_server_that_dribbles() -> None:
    with hostile({"/metrics": dribble(OK, b"a")}) as server:
        command = [sys.executable, "-m", "kvplan", "top", "--once", "--interval", "60", server.url, "127.0.0.1:9"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not server.num_connections:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        began = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        _, talk = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in talk
    assert time.monotonic() - began < 20, "not the 60 s that the server may take"
