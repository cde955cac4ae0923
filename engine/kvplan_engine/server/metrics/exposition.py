"""The server's numbers as Prometheus' text."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from kvplan_engine.server.messages import PoolFacts
from kvplan_engine.server.metrics.engine_page import EngineFamilies, engine_metrics
from kvplan_engine.server.metrics.state import ServerMetrics

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """``state`` under the name of the model that is served."""

    def __init__(self, state: ServerMetrics, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_ServerCollector(state, model_name))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _ServerCollector(Collector):
    def __init__(self, state: ServerMetrics, model_name: str) -> None:
        self._state = state
        self._model_name = model_name
        self._families = EngineFamilies(state.engines, model_name)

    def collect(self) -> Iterator[Metric]:
        yield from engine_metrics(self._families)
        yield from self._cache_infos()
        yield self._rejections()
        yield self._loop_lag()
        yield from self._http()

    def _cache_infos(self) -> Iterator[Metric]:
        """Yield one for each of the pools that are made; what there is to know is in their labels."""
        pools = {number: engine.pool for number, engine in enumerate(self._state.engines) if engine.pool is not None}
        if not pools:
            return
        infos = [{**_cache_labels(pool), "engine": str(number)} for number, pool in pools.items()]
        family = GaugeMetricFamily("vllm:cache_config_info", "The KV cache's settings.", labels=[*infos[0]])
        for info in infos:
            family.add_metric([*info.values()], 1)
        yield family
        config = pools[min(pools)].config
        if config["enable_lora"]:
            yield self._adapter_requests(str(config["max_loras"]))

    def _adapter_requests(self, max_lora: str) -> Metric:
        """Return the metric, which as vLLM's has what there is to know in its labels; its value is the time."""
        now = self._state.adapters()
        labels = {
            "max_lora": max_lora,
            "waiting_lora_adapters": ",".join(now.waiting),
            "running_lora_adapters": ",".join(now.running),
        }
        family = GaugeMetricFamily("vllm:lora_requests_info", "LoRA adapters with requests.", labels=[*labels])
        family.add_metric([*labels.values()], time.time())
        return family

    def _rejections(self) -> Metric:
        family = CounterMetricFamily(
            "vllm:admission_rejections",
            "Requests refused because too much was queued.",
            labels=["model_name", "reason"],
        )
        for reason, number in self._state.num_rejections.items():
            family.add_metric([self._model_name, reason], number)
        return family

    def _loop_lag(self) -> Metric:
        family = HistogramMetricFamily(
            "kvplan:event_loop_lag_seconds", "How late the API process wakes.", labels=["model_name"]
        )
        lag = self._state.loop_lag
        family.add_metric([self._model_name], list(lag.cumulative()), lag.total)
        return family

    def _http(self) -> Iterator[Metric]:
        """Under the names that vLLM's dashboards query, which carry no prefix."""
        requests = CounterMetricFamily("http_requests", "HTTP requests.", labels=["handler", "method", "status"])
        for labels, number in self._state.num_http_requests.items():
            requests.add_metric([*labels], number)
        yield requests
        seconds = HistogramMetricFamily(
            "http_request_duration_seconds", "Time of HTTP requests.", labels=["handler", "method"]
        )
        for handler_and_method, histogram in self._state.http_seconds.items():
            seconds.add_metric([*handler_and_method], list(histogram.cumulative()), histogram.total)
        yield seconds


def _cache_labels(pool: PoolFacts) -> dict[str, str]:
    """Labels under vLLM's names for CacheConfig's fields."""
    config = pool.config
    num_tokens = pool.num_blocks * pool.block_size
    labels = {
        "block_size": pool.block_size,
        "cache_dtype": config["kv_cache_dtype"],
        "effective_attention_block_size": pool.block_size,
        "enable_prefix_caching": config["enable_prefix_caching"],
        "gpu_memory_utilization": config["gpu_memory_utilization"],
        "kv_cache_max_concurrency": f"{num_tokens / pool.max_model_len:.2f}",
        "kv_cache_memory_bytes": pool.num_blocks * pool.block_bytes,
        "kv_cache_size_tokens": num_tokens,
        "num_gpu_blocks": pool.num_blocks,
        "prefix_caching_hash_algo": "blake2b",
    }
    return {name: str(value) for name, value in labels.items()}
