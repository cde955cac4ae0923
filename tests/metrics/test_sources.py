"""Readings over HTTP: what the source asks, and what it says when it cannot read."""

from __future__ import annotations

import http.client
import socket
import ssl

import pytest
from hostile_server import Answer, document, hostile
from metric_pages import LLAMACPP_PAGE, TRTLLM_ITERATIONS, TRTLLM_PAGE, vllm_page

from kvplan.errors import KvplanError, UsageError
from kvplan.metrics.http import ServerAddress, unreachable
from kvplan.metrics.source import MetricsSource


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
