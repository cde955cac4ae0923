"""LoRA adapters are models of their own to clients: listed, answered with, loaded and unloaded at run time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from adapter_files import save_adapter
from prometheus_client.parser import text_string_to_metric_families
from server_process import HttpAnswer, ServerProcess
from transformers import LlamaForCausalLM

from kvplan_engine import LLM, EngineConfig, LoRARequest, SamplingParams
from kvplan_engine.server.engine_client.client import EngineClient
from kvplan_engine.server.engine_client.generation import Generation, Mailbox
from kvplan_engine.server.engine_client.in_flight import AdmissionQueue
from kvplan_engine.server.messages import PoolFacts
from kvplan_engine.server.metrics.exposition import Exposition
from kvplan_engine.server.metrics.state import AdaptersInFlight, EngineMetrics, ServerMetrics

pytestmark = pytest.mark.xdist_group("server-adapters")

PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture(scope="module")
def adapters(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    model = LlamaForCausalLM.from_pretrained(model_path)
    folder = tmp_path_factory.mktemp("adapters")
    return {name: save_adapter(model, folder / name, seed) for seed, name in enumerate(("sql", "chat", "late"))}


@pytest.fixture(scope="module")
def server(model_path: Path, adapters: dict[str, Path]) -> Iterator[ServerProcess]:
    with ServerProcess(
        str(model_path),
        served_model_names=["small"],
        lora_modules={name: str(adapters[name]) for name in ("sql", "chat")},
        allow_runtime_lora_updating=True,
        settings={"enable_lora": True, "max_loras": 2, "max_cpu_loras": 4, "dtype": "float32"},
    ) as server:
        yield server
        assert server.end() == 0, "".join(server.lines)


def answer(server: ServerProcess, model: str) -> HttpAnswer:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    return server.post("/v1/completions", body | {"return_token_ids": True})


def tokens(server: ServerProcess, model: str) -> list[int]:
    found = answer(server, model)
    assert found.status == 200, found.body
    assert found.json["model"] == model
    return list(found.json["choices"][0]["token_ids"])


def test_adapters_are_listed_with_the_model_they_belong_to(server: ServerProcess, adapters: dict[str, Path]) -> None:
    cards = {card["id"]: card for card in server.get("/v1/models").json["data"]}
    assert {"small", "sql", "chat"} <= cards.keys()
    assert cards["sql"]["parent"] == "small" and cards["sql"]["root"] == str(adapters["sql"])
    assert cards["small"]["parent"] is None


def test_each_name_answers_as_its_adapter_does(
    server: ServerProcess, adapters: dict[str, Path], model_path: Path
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    with LLM(str(model_path), device="cpu", device_memory="256MiB", dtype="float32", enable_lora=True) as llm:
        for name in ("small", "sql", "chat"):
            request = None if name == "small" else LoRARequest(name, str(adapters[name]))
            (want,) = llm.generate({"prompt_token_ids": PROMPT}, params, lora_request=request)
            assert tokens(server, name) == list(want.outputs[0].token_ids)


def test_an_adapter_is_loaded_and_unloaded_at_run_time(server: ServerProcess, adapters: dict[str, Path]) -> None:
    assert answer(server, "late").status == 404
    body = {"lora_name": "late", "lora_path": str(adapters["late"])}
    loaded = server.post("/v1/load_lora_adapter", body)
    assert loaded.body.decode() == "Success: LoRA adapter 'late' added successfully."
    assert tokens(server, "late") != tokens(server, "small")
    assert server.post("/v1/load_lora_adapter", body).status == 400
    gone = server.post("/v1/unload_lora_adapter", {"lora_name": "late"})
    assert gone.body.decode() == "Success: LoRA adapter 'late' removed successfully."
    assert answer(server, "late").status == 404
    assert server.post("/v1/unload_lora_adapter", {"lora_name": "late"}).status == 404


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"lora_name": "bad", "lora_path": "/nowhere"}, "holds no adapter_config.json"),
        ({"lora_name": "small", "lora_path": "/nowhere"}, "name of the model itself"),
        ({"lora_name": "", "lora_path": ""}, "Give 'lora_name'"),
    ],
)
def test_what_cannot_be_loaded_is_a_400(server: ServerProcess, body: dict[str, str], sentence: str) -> None:
    refused = server.post("/v1/load_lora_adapter", body)
    assert refused.status == 400 and sentence in refused.error["message"]
    assert "bad" not in [card["id"] for card in server.get("/v1/models").json["data"]]


def test_a_server_whose_adapter_cannot_be_read_does_not_start(model_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"holds no adapter_config\.json"):
        ServerProcess(str(model_path), lora_modules={"sql": "/nowhere"}, settings={"enable_lora": True})


def pool(**settings: object) -> PoolFacts:
    config = EngineConfig(model="small")
    described = {each.name: getattr(config, each.name) for each in fields(config)}
    return PoolFacts(described | settings, 96, 4, 10, 16, 1024, {})


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> EngineClient:
    """A client whose messages go nowhere: no engine runs behind it."""
    client = EngineClient(EngineMetrics(), AdmissionQueue(None, None), asyncio.Event())
    monkeypatch.setattr(client, "_send", lambda message: None)
    return client


def submit(client: EngineClient, adapter: str | None) -> Generation:
    request = None if adapter is None else LoRARequest(adapter, "/adapters/" + adapter)
    return client.submit([1, 2], SamplingParams(n=2), 0.0, Mailbox(), 0, request)


def test_adapters_run_and_wait_by_their_requests(client: EngineClient) -> None:
    begun = [submit(client, name) for name in ("sql", "chat", None, "sql")]
    for generation in begun:
        generation.scheduled_seconds = 1.0
    waiting = [submit(client, name) for name in ("sql", "late", None)]
    assert client.adapters_in_flight() == AdaptersInFlight(("chat", "sql"), ("late", "sql"))
    client.abort(waiting[1])
    client.abort(begun[1])
    assert client.adapters_in_flight() == AdaptersInFlight(("sql",), ("sql",))


def test_the_metric_has_vllms_labels_and_the_time_as_its_value() -> None:
    metrics = ServerMetrics(num_engines=2)
    metrics.adapters = lambda: AdaptersInFlight(("chat", "sql"), ("late",))
    for engine in metrics.engines:
        engine.use_pool(pool(enable_lora=True, max_loras=3))
    page = Exposition(metrics, "small").text().decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    (sample,) = families["vllm:lora_requests_info"].samples
    assert sample.labels == {
        "max_lora": "3",
        "running_lora_adapters": "chat,sql",
        "waiting_lora_adapters": "late",
    }
    assert abs(sample.value - time.time()) < 600


def test_a_server_without_adapters_does_not_show_it() -> None:
    metrics = ServerMetrics()
    metrics.engines[0].use_pool(pool(enable_lora=False))
    assert b"lora_requests_info" not in Exposition(metrics, "small").text()
