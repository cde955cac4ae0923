"""Which LoRA adapters have requests: vLLM's ``lora_requests_info``."""

from __future__ import annotations

import asyncio
import time
from dataclasses import fields

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvplan_engine import EngineConfig
from kvplan_engine.requests.request import LoRARequest
from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.server.engine_client.client import EngineClient
from kvplan_engine.server.engine_client.generation import Generation, Mailbox
from kvplan_engine.server.engine_client.in_flight import AdmissionQueue
from kvplan_engine.server.messages import PoolFacts
from kvplan_engine.server.metrics.exposition import Exposition
from kvplan_engine.server.metrics.state import AdaptersInFlight, EngineMetrics, ServerMetrics


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
