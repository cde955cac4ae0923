"""Metrics under vLLM's names, the prefix cache, and settings that change while the server runs."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess, decoded_events, wait_for

# The metrics that vLLM's dashboards query (vllm_overview, vllm_kv_cache and vllm_instances of 0.33) and the server has,
# as Prometheus stores them.
_QUERIED = """
vllm:request_success_total vllm:prompt_tokens_total vllm:generation_tokens_total vllm:prompt_tokens_by_source_total
vllm:num_requests_running vllm:num_requests_waiting vllm:num_requests_waiting_by_reason vllm:kv_cache_usage_perc
vllm:num_preemptions_total vllm:prefix_cache_hits_total vllm:prefix_cache_queries_total
vllm:iteration_tokens_total_bucket vllm:iteration_tokens_total_sum vllm:iteration_tokens_total_count
vllm:time_to_first_token_seconds_bucket vllm:inter_token_latency_seconds_bucket
vllm:request_time_per_output_token_seconds_bucket vllm:e2e_request_latency_seconds_bucket
vllm:request_queue_time_seconds_bucket vllm:request_prefill_time_seconds_sum vllm:request_decode_time_seconds_count
vllm:request_prompt_tokens_bucket vllm:request_generation_tokens_bucket vllm:prompt_tokens_cached_total
vllm:cache_config_info vllm:engine_sleep_state http_requests_total http_request_duration_seconds_sum
http_request_duration_seconds_count process_cpu_seconds_total process_resident_memory_bytes process_open_fds
process_max_fds process_start_time_seconds
"""
TTFT = (
    "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 160.0 640.0 2560.0 +Inf"
)
LATENCY = (
    "0.3 0.5 0.8 1.0 1.5 2.0 2.5 5.0 10.0 15.0 20.0 30.0 40.0 50.0 60.0 120.0 240.0 480.0 960.0 1920.0 7680.0 +Inf"
)
ITL = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 +Inf"


@pytest.fixture(scope="module")
def own(long_model_path: Path) -> Iterator[ServerProcess]:
    """A server whose counters and settings nobody else changes. The last test ends it."""
    with ServerProcess(str(long_model_path), {"max_num_seqs": 8}, served_model_names=["small"]) as server:
        yield server


def test_metrics_have_vllms_names_and_buckets(own: ServerProcess) -> None:
    own.complete("the", max_tokens=2)
    metrics = own.metrics()
    names = {name for name, _ in metrics}
    assert set(_QUERIED.split()) - names == set()
    for name, bounds in (
        ("time_to_first_token_seconds", TTFT),
        ("e2e_request_latency_seconds", LATENCY),
        ("inter_token_latency_seconds", ITL),
        ("request_params_n", "1.0 2.0 5.0 10.0 20.0 +Inf"),
        ("request_prompt_tokens", "1.0 2.0 5.0 10.0 20.0 50.0 100.0 200.0 500.0 1000.0 2000.0 5000.0 +Inf"),
    ):
        found = [dict(labels)["le"] for each, labels in metrics if each == f"vllm:{name}_bucket"]
        assert sorted(found, key=float) == bounds.split(), name
    assert 'vllm:num_requests_running{engine="0",model_name="small"} 0.0' in own.get("/metrics").body.decode()


def test_metrics_count_what_happened(own: ServerProcess) -> None:
    before = own.metrics()
    own.complete(list(range(40, 80)), max_tokens=5, ignore_eos=True)
    own.complete(list(range(40, 80)), max_tokens=4, ignore_eos=True, n=2)
    after = own.metrics()

    def grown(name: str, **labels: str) -> float:
        key = ("vllm:" + name, frozenset(labels.items()))
        return after[key] - before.get(key, 0.0)

    assert grown("prompt_tokens_total") == 80
    assert grown("generation_tokens_total") == 13
    assert grown("prefix_cache_queries_total") == 80
    assert grown("prefix_cache_hits_total") == 32, "two full blocks of 16"
    assert grown("prompt_tokens_by_source_total", source="local_cache_hit") == 32
    assert grown("prompt_tokens_by_source_total", source="local_compute") == 48
    assert grown("request_success_total", finished_reason="length") == 3
    assert grown("time_to_first_token_seconds_count") == 3
    assert grown("inter_token_latency_seconds_count") == 13 - 3
    assert grown("request_generation_tokens_sum") == 13
    assert grown("request_prompt_tokens_sum") == 120
    assert (grown("request_params_n_count"), grown("request_params_n_sum")) == (2, 1 + 2)
    assert grown("request_max_num_generation_tokens_count") == 2
    assert grown("request_max_num_generation_tokens_sum") == 5 + 4
    assert grown("e2e_request_latency_seconds_count") == 3
    assert grown("iteration_tokens_total_sum") == 48 + 4 + 2 * 3
    e2e, queue, inference = (
        grown(f"{name}_seconds_sum") for name in ("e2e_request_latency", "request_queue_time", "request_inference_time")
    )
    assert 0 <= queue + inference <= e2e
    blocks = {dict(labels)["state"]: value for (name, labels), value in after.items() if name == "kvplan:kv_blocks"}
    assert sum(blocks.values()) == own.stats()["num_blocks"]
    assert blocks["used"] == 0


@contextmanager
def _endless_stream(server: ServerProcess) -> Iterator[None]:
    """A request runs all the while: much longer than a test, until its client leaves. Then the server is idle."""
    longest = server.get("/v1/models").json["data"][0]["max_model_len"] - 1
    data = json.dumps({"prompt": [3], "max_tokens": longest, "n": 4, "ignore_eos": True, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
        wait_for(lambda: server.metric("vllm:num_requests_running"), lambda number: number > 0)
        yield
    server.wait_until_idle()


def test_the_prefix_cache_can_be_emptied_while_nothing_runs(own: ServerProcess) -> None:
    prompt = list(range(100, 140))
    fields: dict[str, Any] = {"max_tokens": 2, "ignore_eos": True}
    own.complete(prompt, **fields)

    def cached() -> int:
        return int(own.complete(prompt, **fields)["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached() == 32
    assert own.post("/reset_prefix_cache", {}).json == {"success": True}
    assert own.stats()["num_cached_blocks"] == 0
    assert cached() == 0
    assert cached() == 32
    with _endless_stream(own):
        assert own.post("/reset_prefix_cache", {}).json == {"success": False}


def test_settings_change_without_a_restart(own: ServerProcess) -> None:
    """Requests in flight are finished first, those that come meanwhile wait; the tokens stay the same."""
    before = own.complete("the capital", max_tokens=12)["choices"][0]["text"]
    num_prompt_tokens = own.metric("vllm:prompt_tokens_total")
    queries = own.metric("vllm:prefix_cache_queries_total")
    blocks = own.get("/v1/runtime_config").json["num_blocks"]
    results: list[Any] = []
    flying = threading.Thread(target=lambda: results.append(own.complete([3, 4], max_tokens=200, n=8, ignore_eos=True)))
    flying.start()
    wait_for(lambda: own.metric("vllm:prompt_tokens_total"), lambda number: number > num_prompt_tokens)
    answer = own.request("PATCH", "/v1/runtime_config", {"block_size": 32, "max_model_len": 128, "max_num_seqs": 4})
    assert answer.status == 200, answer.body
    assert answer.json["block_size"] == 32
    assert answer.json["num_blocks"] < blocks
    flying.join()
    assert results[0]["usage"]["completion_tokens"] == 8 * 200
    assert own.get("/v1/models").json["data"][0]["max_model_len"] == 128
    assert own.complete("the capital", max_tokens=12)["choices"][0]["text"] == before
    assert own.post("/v1/completions", {"prompt": "a", "max_tokens": 200}).status == 400
    refused = own.post("/v1/completions", {"prompt": "a", "n": 5})
    assert refused.status == 400
    assert refused.error["param"] == "n"
    assert "max_num_seqs 4" in refused.error["message"]
    assert own.metric("vllm:request_success_total", finished_reason="error") == 0, "it was never a request"
    assert own.metric("vllm:prompt_tokens_total") > num_prompt_tokens
    assert own.metric("vllm:prefix_cache_queries_total") > queries, "counters go on over a new pool"
    assert own.request("PATCH", "/v1/runtime_config", {"max_model_len": 8192}).status == 200


@pytest.mark.parametrize(("changes", "says"), [
    ({"dtype": "float16"}, "'dtype' is not a setting that a running server can change"),
    ({"block_sise": 4}, "'block_sise' is not a setting"),
    ({"max_num_seqs": "many"}, "Expected `int`, got `str` - at `$.max_num_seqs`"),
    ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
    ({"swap_space": 10**20}, "swap_space must fit 64 bits"),
    ({"max_num_batched_tokens": 10**17}, "max_num_batched_tokens must be at most 2,147,483,647, got"),
    ({"gpu_memory_utilization": 0.01}, "GiB"),
    ({"max_num_seqs": 30_000_000}, "GiB"),
    ({"max_model_len": 100_000}, "max_model_len 100,000 is more than"),
])  # fmt: skip
def test_settings_that_do_not_fit_leave_the_server_as_it_was(
    own: ServerProcess, changes: dict[str, Any], says: str
) -> None:
    before = own.get("/v1/runtime_config").json
    answer = own.request("PATCH", "/v1/runtime_config", changes)
    assert answer.status == 400
    assert says in answer.error["message"]
    assert own.get("/v1/runtime_config").json == before
    assert own.complete("the", max_tokens=2)["choices"]


@pytest.mark.parametrize("timeout", ["nan", "inf", "-1", "1e300", "soon"])
def test_a_timeout_that_is_no_time_is_refused(own: ServerProcess, timeout: str) -> None:
    answer = own.request("PATCH", f"/v1/runtime_config?timeout={timeout}", {"max_num_seqs": 2})
    assert answer.status == 400
    assert f"timeout '{timeout}' is not a number of seconds" in answer.error["message"]


@pytest.mark.parametrize("rank", ["7", "9" * 5000], ids=["beyond", "endless"])
def test_an_engine_that_is_not_there_is_refused(own: ServerProcess, rank: str) -> None:
    answer = own.post("/v1/completions", {"prompt": "the"}, {"X-data-parallel-rank": rank})
    assert answer.status == 400
    assert "must be from 0 to 0, got " in answer.error["message"] and len(answer.error["message"]) < 200


def test_new_settings_do_not_wait_for_ever(own: ServerProcess) -> None:
    with _endless_stream(own):
        assert own.get("/load").json == {"server_load": 1}
        answer = own.request("PATCH", "/v1/runtime_config?timeout=0.001", {"max_num_seqs": 2})
        assert answer.status == 409
        assert "nothing was changed" in answer.error["message"]
    assert own.complete("the", max_tokens=2)["choices"]
    assert own.get("/load").json == {"server_load": 0}


def test_server_info_says_what_runs(own: ServerProcess) -> None:
    info = own.get("/server_info").json
    assert info["model"]["dtype"] == "float32"
    assert info["model"]["kernels"].startswith("cpu-")
    assert info["config"]["device_memory"] == 256 * 1024**2
    assert info["memory"]["num_blocks"] == info["stats"]["num_blocks"]
    assert own.get("/version").json == {"version": info["version"]}


def test_without_patience_requests_in_flight_end_with_an_error(own: ServerProcess) -> None:
    body = {"prompt": [5, 6, 7], "max_tokens": 8000, "n": 4, "ignore_eos": True, "stream": True}
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(own.post("/v1/completions", body)))
    thread.start()
    wait_for(lambda: own.metric("vllm:num_requests_running"), lambda number: number > 0)
    assert own.end() == 0
    thread.join(120)
    *_, error, done = decoded_events(results[0].body)
    assert error["error"]["message"] == "The server is shutting down."
    assert done == "[DONE]"
