"""The server's numbers as Prometheus' text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from kvplan_engine.server.messages import PoolFacts
from kvplan_engine.server.metrics.histogram import Histogram
from kvplan_engine.server.metrics.state import AdaptersInFlight, ServerMetrics

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_ENGINE = "0"  # vLLM's label of an engine's index; there is one


class Exposition:
    """``state`` under the name of the model that is served. adapters: asked at each reading which have requests."""

    def __init__(
        self, state: ServerMetrics, model_name: str, adapters: Callable[[], AdaptersInFlight] = AdaptersInFlight
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_ServerCollector(state, model_name, adapters))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _ServerCollector(Collector):
    def __init__(self, state: ServerMetrics, model_name: str, adapters: Callable[[], AdaptersInFlight]) -> None:
        self._state, self._adapters = state, adapters
        self._labels = {"model_name": model_name, "engine": _ENGINE}

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()
        yield from self._own()
        yield from self._http()

    # ---- families

    def _gauge(self, name: str, help: str, value: float, **more: str) -> Metric:
        return self._gauges_by(name, help, next(iter(more), ""), {next(iter(more.values()), ""): value})

    def _gauges_by(self, name: str, help: str, label: str, values: Mapping[str, float]) -> Metric:
        names = [*self._labels, label] if label else [*self._labels]
        family = GaugeMetricFamily(name, help, labels=names)
        for kind, value in values.items():
            family.add_metric([*self._labels.values(), kind][: len(names)], value)
        return family

    def _counter(self, name: str, help: str, value: float) -> Metric:
        family = CounterMetricFamily(name, help, labels=[*self._labels])
        family.add_metric([*self._labels.values()], value)
        return family

    def _counters_by(self, name: str, help: str, label: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(name, help, labels=[*self._labels, label])
        for kind, value in values.items():
            family.add_metric([*self._labels.values(), kind], value)
        return family

    def _histogram(self, name: str, help: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, help, labels=[*self._labels])
        family.add_metric([*self._labels.values()], list(histogram.cumulative()), histogram.total)
        return family

    # ---- vLLM's

    def _gauges(self) -> Iterator[Metric]:
        state, stats = self._state, self._state.stats
        num_waiting = stats.num_waiting + stats.num_swapped
        num_blocks = stats.num_used_blocks + stats.num_free_blocks
        yield self._gauge("vllm:num_requests_running", "Sequences in execution.", stats.num_running)
        yield self._gauge("vllm:num_requests_waiting", "Sequences that wait.", num_waiting)
        yield self._gauges_by(
            "vllm:num_requests_waiting_by_reason",
            "Sequences that wait, by reason.",
            "reason",
            {"capacity": num_waiting, "deferred": 0},
        )
        yield self._gauge(
            "vllm:kv_cache_usage_perc",
            "KV blocks in use. 1 means 100 percent.",
            stats.num_used_blocks / num_blocks if num_blocks else 0.0,
        )
        yield self._gauges_by(
            "vllm:engine_sleep_state",
            "1 for the state the engine is in.",
            "sleep_state",
            {"awake": 1, "weights_offloaded": 0, "discard_all": 0},
        )
        if state.pool is not None:
            labels = {**_cache_labels(state.pool), "engine": _ENGINE}
            family = GaugeMetricFamily("vllm:cache_config_info", "The KV cache's settings.", labels=[*labels])
            family.add_metric([*labels.values()], 1)
            yield family
            if state.pool.config["enable_lora"]:
                yield self._adapter_requests(str(state.pool.config["max_loras"]))

    def _adapter_requests(self, max_lora: str) -> Metric:
        """As vLLM's, it has what there is to know in its labels; its value is the time."""
        now = self._adapters()
        labels = {
            "max_lora": max_lora,
            "waiting_lora_adapters": ",".join(now.waiting),
            "running_lora_adapters": ",".join(now.running),
        }
        family = GaugeMetricFamily("vllm:lora_requests_info", "LoRA adapters with requests.", labels=[*labels])
        family.add_metric([*labels.values()], time.time())
        return family

    def _counters(self) -> Iterator[Metric]:
        state = self._state
        num_computed = state.num_prompt_tokens - state.num_cached_prompt_tokens
        for name, help, value in (
            (
                "prefix_cache_queries",
                "Prompt tokens looked up in the prefix cache.",
                state.total("prefix_cache_queries"),
            ),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", state.total("prefix_cache_hits")),
            ("num_preemptions", "Preemptions.", state.total("num_preemptions")),
            ("prompt_tokens", "Prompt tokens of requests that began.", state.num_prompt_tokens),
            ("prompt_tokens_cached", "Prompt tokens taken from the prefix cache.", state.num_cached_prompt_tokens),
            ("generation_tokens", "Generated tokens.", state.num_generation_tokens),
        ):
            yield self._counter(f"vllm:{name}", help, value)
        yield self._counters_by(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by where their KV came from.",
            "source",
            {
                "local_compute": num_computed,
                "local_cache_hit": state.num_cached_prompt_tokens,
                "external_kv_transfer": 0,
            },
        )
        yield self._counters_by(
            "vllm:request_success", "Finished answers by reason.", "finished_reason", state.num_requests_by_reason
        )
        rejections = CounterMetricFamily(
            "vllm:admission_rejections",
            "Requests refused because too much was queued.",
            labels=["model_name", "reason"],
        )
        for reason, number in state.num_rejections.items():
            rejections.add_metric([self._labels["model_name"], reason], number)
        yield rejections

    def _histograms(self) -> Iterator[Metric]:
        state = self._state
        for name, help, histogram in (
            ("request_prompt_tokens", "Prompt tokens per answer.", state.prompt_tokens),
            ("request_generation_tokens", "Generated tokens per answer.", state.generation_tokens),
            ("request_max_num_generation_tokens", "Most tokens generated per request.", state.max_generation_tokens),
            ("request_params_n", "n of requests.", state.params_n),
            ("request_params_max_tokens", "max_tokens of requests.", state.params_max_tokens),
            ("iteration_tokens_total", "Tokens computed per step.", state.iteration_tokens),
            ("time_to_first_token_seconds", "From arrival to the first token.", state.time_to_first_token),
            ("inter_token_latency_seconds", "Between an answer's tokens.", state.inter_token_latency),
            ("request_time_per_output_token_seconds", "Mean per answer after its first token.",
             state.time_per_output_token),
            ("e2e_request_latency_seconds", "From arrival to the end.", state.e2e_latency),
            ("request_queue_time_seconds", "From arrival until first scheduled.", state.queue_time),
            ("request_inference_time_seconds", "From first scheduled to the last token.", state.inference_time),
            ("request_prefill_time_seconds", "From first scheduled to the first token.", state.prefill_time),
            ("request_decode_time_seconds", "From the first token to the last.", state.decode_time),
            ("request_num_preemptions", "Preemptions per request.", state.num_preemptions_per_request),
            ("request_prefill_kv_computed_tokens", "Prompt tokens computed per request.",
             state.prefill_computed_tokens),
        ):  # fmt: skip
            yield self._histogram(f"vllm:{name}", help, histogram)

    # ---- ours

    def _own(self) -> Iterator[Metric]:
        state, stats = self._state, self._state.stats
        yield self._gauges_by(
            "kvplan:kv_blocks",
            "KV blocks: in use, free with KV that can be found again, free and empty.",
            "state",
            {
                "used": stats.num_used_blocks,
                "cached": stats.num_free_cached_blocks,
                "free": stats.num_free_blocks - stats.num_free_cached_blocks,
            },
        )
        yield self._gauge("kvplan:num_requests_swapped", "Sequences in host memory.", stats.num_swapped)
        yield self._gauge(
            "kvplan:kv_internal_fragmentation_bytes",
            "Slots of used blocks that held no KV in the last step.",
            stats.internal_fragmentation_bytes,
        )
        yield self._counter("kvplan:swaps", "Preemptions that swapped.", state.total("num_swaps"))
        yield self._counter("kvplan:recomputed_tokens", "Tokens computed again.", state.total("recomputed_tokens"))
        yield self._counter(
            "kvplan:blocked_admissions", "Steps in which no blocks were free for a waiting sequence.",
            state.total("num_blocked_admissions"),
        )  # fmt: skip
        yield self._histogram("kvplan:step_seconds", "Time of a step.", state.step_seconds)
        yield self._histogram("kvplan:event_loop_lag_seconds", "How late the API process wakes.", state.loop_lag)

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
