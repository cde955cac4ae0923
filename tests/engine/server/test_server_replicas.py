"""Two engines behind one API: the same tokens, prefixes that are found again, one door for settings, and an end."""

from __future__ import annotations

import asyncio
import operator
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pytest
from adapter_files import save_adapter
from server_process import ServerProcess, is_idle, plain, wait_for
from storms import storm
from streams import NUM_STREAMS, PROMPTS, all_streamed
from transformers import LlamaForCausalLM

from kvplan.catalog.models import resolve_model
from kvplan.estimate.kvplan.memory import predict
from kvplan.estimate.kvplan.settings import EngineDevice
from kvplan.metrics.page import read_page
from kvplan.settings import ServingSettings
from kvplan_engine import LLM, SamplingParams

pytestmark = pytest.mark.xdist_group("server-replicas")

PATIENCE_SECONDS = 300.0


@pytest.fixture(scope="module")
def pair(long_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The last test ends it."""
    adapter = save_adapter(LlamaForCausalLM.from_pretrained(long_model_path), tmp_path_factory.mktemp("adapter"), 1)
    with ServerProcess(
        str(long_model_path),
        {"enable_lora": True, "max_num_seqs": 32},
        served_model_names=["small"],
        lora_modules={"sql": str(adapter)},
        data_parallel_size=2,
        shutdown_timeout=PATIENCE_SECONDS,
    ) as server:
        yield server


def wait_until_idle(server: ServerProcess) -> list[dict[str, Any]]:
    """Every engine's statistics, once none has a request."""
    engines = wait_for(server.engines, lambda engines: all(is_idle(engine["stats"]) for engine in engines))
    return [engine["stats"] for engine in engines]


def forget_prefixes(server: ServerProcess) -> None:
    wait_until_idle(server)
    assert server.post("/reset_prefix_cache", {}).json == {"success": True}


def num_cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_requests_without_a_seed_are_drawn_apart(pair: ServerProcess) -> None:
    """The first of each engine: the second goes to the other one, which was sent less."""
    fields: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True, "return_token_ids": True, "temperature": 1.0}
    first, second = (pair.complete([7], **fields)["choices"][0]["token_ids"] for _ in range(2))
    assert min(pair.by_engine("vllm:prompt_tokens_total")) > 0, "one engine had both"
    assert first != second


def test_64_streams_give_the_same_tokens_as_one_engine(pair: ServerProcess, llm: LLM) -> None:
    fields: list[dict[str, Any]] = [
        {"temperature": 0.9, "top_p": 0.95, "seed": number, "max_tokens": 8 + number % 17}
        for number in range(NUM_STREAMS)
    ]
    answers = llm.generate(PROMPTS, [SamplingParams(**own) for own in fields])
    expected = [(answer.outputs[0].token_ids, plain(answer.outputs[0].text)) for answer in answers]
    assert asyncio.run(all_streamed(pair, fields)) == expected
    assert min(pair.by_engine("vllm:request_generation_tokens_count")) > NUM_STREAMS / 4, "one engine had all"
    assert [stats["num_used_blocks"] for stats in wait_until_idle(pair)] == [0, 0]


def test_shared_prompts_are_computed_once(pair: ServerProcess) -> None:
    """Not once by each engine. The order is one in which taking turns would give every prompt to both."""
    forget_prefixes(pair)
    before = pair.by_engine("vllm:prefix_cache_hits_total")
    prompts = [[100 + number] * 64 for number in range(8)]
    cached = [
        num_cached(pair.complete([*prompt, turn], max_tokens=2)) for turn in range(3) for prompt in prompts[turn % 2 :]
    ]
    assert cached == [0] * 8 + [64] * 15
    assert all(map(operator.gt, pair.by_engine("vllm:prefix_cache_hits_total"), before)), "one engine had all"


def test_a_session_stays_where_it_began(pair: ServerProcess) -> None:
    """The first prompt fills no block: only its answer shows where the next turn belongs."""
    for start in (201, 202, 203):
        fields: dict[str, Any] = {"ignore_eos": True, "return_token_ids": True}
        answer = pair.complete([start, 5], max_tokens=100, **fields)["choices"][0]["token_ids"]
        assert num_cached(pair.complete([start, 5, *answer, 9], max_tokens=2)) == 96


def test_a_client_may_choose_the_engine(pair: ServerProcess) -> None:
    """By vLLM's header, against prefix and load."""
    prompt = [60] * 40
    for engine in (0, 0, 1, 1):
        before = pair.by_engine("vllm:prompt_tokens_total")
        header = {"X-data-parallel-rank": str(engine)}
        assert pair.post("/v1/completions", {"prompt": prompt, "max_tokens": 2}, header).status == 200
        grown = map(operator.sub, pair.by_engine("vllm:prompt_tokens_total"), before)
        assert list(grown) == [40 * (engine == number) for number in range(2)]
    for nonsense in ("2", "-1", "one"):
        refused = pair.post("/v1/completions", {"prompt": prompt}, {"X-data-parallel-rank": nonsense})
        assert (refused.status, "must be from 0 to 1" in refused.error["message"]) == (400, True)


def test_an_adapter_is_loaded_by_both(pair: ServerProcess) -> None:
    """New prompts go to the engines in turn. Each gives tokens of the adapter, not of the model."""
    forget_prefixes(pair)
    before = pair.by_engine("vllm:prompt_tokens_total")
    fields: dict[str, Any] = {"max_tokens": 6, "ignore_eos": True, "return_token_ids": True}
    prompts = [[start] * 20 for start in range(300, 304)]
    adapted = [pair.complete(prompt, model="sql", **fields) for prompt in prompts]
    assert all(map(operator.gt, pair.by_engine("vllm:prompt_tokens_total"), before)), "one engine had all"
    for prompt, answer in zip(prompts, adapted, strict=True):
        own = pair.complete(prompt, model="small", **fields)
        assert own["choices"][0]["token_ids"] != answer["choices"][0]["token_ids"]
        assert num_cached(own) == 0, "the KV of an adapter"


def test_metrics_and_server_info_tell_the_engines_apart(pair: ServerProcess) -> None:
    info = pair.get("/server_info").json
    assert info["data_parallel_size"] == 2
    assert [engine["engine"] for engine in info["engines"]] == [0, 1]
    assert "stats" not in info, "of which engine?"
    assert len({engine["engine_pid"] for engine in info["engines"]}) == 2
    page = pair.get("/metrics").body.decode()
    for number in (0, 1):
        assert f'vllm:num_requests_running{{engine="{number}",model_name="small"}} 0.0' in page
    reading = read_page(page)
    assert reading is not None and reading.num_engines == 2
    assert reading.cache.num_blocks == sum(engine["memory"]["num_blocks"] for engine in info["engines"])
    assert reading.cache.kv_cache_size_tokens == 2 * pair.get("/v1/runtime_config").json["kv_cache_size_tokens"]


def test_both_pools_are_as_large_as_predicted(pair: ServerProcess, long_model_path: Path) -> None:
    settings = ServingSettings(
        dtype="float32", max_num_seqs=32, enable_lora=True, data_parallel_size=2, device_memory_bytes=256 * 1024**2
    )
    found = predict(resolve_model(str(long_model_path)), settings, EngineDevice(256 * 1024**2, "cpu"))
    assert [engine["memory"]["num_blocks"] for engine in pair.engines()] == [found.num_blocks] * 2
    assert pair.get("/v1/runtime_config").json["kv_cache_size_tokens"] == found.kv_cache_tokens


def test_settings_change_in_both_engines_or_in_none(pair: ServerProcess) -> None:
    prompt = [50] * 40
    pair.complete(prompt, max_tokens=2)
    answer = pair.request("PATCH", "/v1/runtime_config", {"block_size": 32})
    assert answer.status == 200, answer.body
    assert [engine["memory"]["block_size"] for engine in pair.engines()] == [32, 32]
    assert num_cached(pair.complete(prompt, max_tokens=2)) == 0, "a pool from before"
    assert num_cached(pair.complete(prompt, max_tokens=2)) == 32
    refused = pair.request("PATCH", "/v1/runtime_config", {"gpu_memory_utilization": 0.01})
    assert refused.status == 400
    budgets = {(engine["memory"]["budget_bytes"], engine["memory"]["block_size"]) for engine in pair.engines()}
    assert budgets == {(int(0.9 * 256 * 1024**2), 32)}
    assert pair.post("/reset_prefix_cache", {}).json == {"success": True}
    assert [engine["stats"]["num_cached_blocks"] for engine in pair.engines()] == [0, 0]
    assert num_cached(pair.complete(prompt, max_tokens=2)) == 0


def test_no_block_is_lost_when_clients_leave(pair: ServerProcess) -> None:
    fates = asyncio.run(storm(pair.port, 150))
    assert fates["left"] > 25
    for stats in wait_until_idle(pair):
        assert stats["num_free_blocks"] == stats["num_blocks"]


def _is_gone(pid: int) -> bool:
    """Or a zombie, which only its parent's end removes."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text(encoding="utf-8").rpartition(") ")[2][0] == "Z"
    except FileNotFoundError:
        return True


def test_a_killed_engine_ends_the_server_after_the_other_has_finished(pair: ServerProcess) -> None:
    """Both engines stand still until each has a request, so that neither is done before one of them is killed."""
    pids = [engine["engine_pid"] for engine in pair.engines()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    body = {"prompt": [3], "max_tokens": 30, "ignore_eos": True}
    with ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(pair.post, "/v1/completions", body) for _ in range(2)]
        wait_for(lambda: pair.get("/load").json, lambda load: load == {"server_load": 2})
        os.kill(pids[0], signal.SIGKILL)
        lost = next(as_completed(answers)).result()
        assert lost.status == 503
        assert "The process of engine 0 was ended by SIGKILL." in lost.error["message"]
        assert pair.get("/health").status == 503
        assert pair.post("/v1/completions", body).status == 503
        os.kill(pids[1], signal.SIGCONT)
        statuses = sorted(answer.result().status for answer in answers)
    assert statuses == [200, 503]
    assert pair.process.wait(PATIENCE_SECONDS) == 1
    assert any("the process of engine 0 of 2 has ended" in line for line in pair.lines)
    assert all(map(_is_gone, pids))
