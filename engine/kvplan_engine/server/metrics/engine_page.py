"""What /metrics shows of every engine: vLLM's families and kvplan's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from kvplan_engine.server.messages import Stats
from kvplan_engine.server.metrics.state import EngineMetrics, Histogram

# Prometheus' families with a sample for each engine, under vLLM's labels ``model_name`` and ``engine``.


Read = Callable[[EngineMetrics], float]
ReadBy = Callable[[EngineMetrics], Mapping[str, float]]


class EngineFamilies:
    """Makes families that show a number of each of ``engines``, which are numbered from 0 on."""

    def __init__(self, engines: Sequence[EngineMetrics], model_name: str) -> None:
        self._engines = engines
        self._model_name = model_name

    def _labelled(self) -> list[tuple[list[str], EngineMetrics]]:
        return [([self._model_name, str(number)], engine) for number, engine in enumerate(self._engines)]

    def has_any(self, read: Callable[[EngineMetrics], object]) -> bool:
        """Whether any engine has something to show."""
        return any(map(read, self._engines))

    def gauge(self, name: str, help: str, read: Read) -> Metric:
        family = GaugeMetricFamily(name, help, labels=["model_name", "engine"])
        for labels, engine in self._labelled():
            family.add_metric(labels, read(engine))
        return family

    def gauges_by(self, name: str, help: str, label: str, read: ReadBy) -> Metric:
        """A sample for each value of ``label``."""
        family = GaugeMetricFamily(name, help, labels=["model_name", "engine", label])
        for labels, engine in self._labelled():
            for kind, value in read(engine).items():
                family.add_metric([*labels, kind], value)
        return family

    def counter(self, name: str, help: str, read: Read) -> Metric:
        family = CounterMetricFamily(name, help, labels=["model_name", "engine"])
        for labels, engine in self._labelled():
            family.add_metric(labels, read(engine))
        return family

    def counters_by(self, name: str, help: str, label: str, read: ReadBy) -> Metric:
        """A sample for each value of ``label``."""
        family = CounterMetricFamily(name, help, labels=["model_name", "engine", label])
        for labels, engine in self._labelled():
            for kind, value in read(engine).items():
                family.add_metric([*labels, kind], value)
        return family

    def histogram(self, name: str, help: str, read: Callable[[EngineMetrics], Histogram]) -> Metric:
        family = HistogramMetricFamily(name, help, labels=["model_name", "engine"])
        for labels, engine in self._labelled():
            found = read(engine)
            family.add_metric(labels, list(found.cumulative()), found.total)
        return family


def engine_metrics(families: EngineFamilies) -> Iterator[Metric]:
    """All of them, with a sample for each engine."""
    yield from _gauges(families)
    yield from _counters(families)
    if families.has_any(attrgetter("accepted_per_position")):
        yield from _drafts(families)
    yield from _histograms(families)
    yield from _own(families)


# ---- vLLM's


def _num_waiting(engine: EngineMetrics) -> int:
    return engine.stats.num_waiting + engine.stats.num_swapped


def _usage(stats: Stats) -> float:
    num_blocks = stats.num_used_blocks + stats.num_free_blocks
    return stats.num_used_blocks / num_blocks if num_blocks else 0.0


def _gauges(families: EngineFamilies) -> Iterator[Metric]:
    yield families.gauge(
        "vllm:num_requests_running", "Sequences in execution.", lambda engine: engine.stats.num_running
    )
    yield families.gauge("vllm:num_requests_waiting", "Sequences that wait.", _num_waiting)
    yield families.gauges_by(
        "vllm:num_requests_waiting_by_reason",
        "Sequences that wait, by reason.",
        "reason",
        lambda engine: {"capacity": _num_waiting(engine), "deferred": 0},
    )
    yield families.gauge(
        "vllm:kv_cache_usage_perc",
        "KV blocks in use. 1 means 100 percent.",
        lambda engine: _usage(engine.stats),
    )
    yield families.gauges_by(
        "vllm:engine_sleep_state",
        "1 for the state the engine is in.",
        "sleep_state",
        lambda _: {"awake": 1, "weights_offloaded": 0, "discard_all": 0},
    )


def _total(name: str) -> Callable[[EngineMetrics], float]:
    return lambda engine: engine.total(name)


def _counters(families: EngineFamilies) -> Iterator[Metric]:
    for name, help, read in (
        ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", _total("prefix_cache_queries")),
        ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", _total("prefix_cache_hits")),
        ("num_preemptions", "Preemptions.", _total("num_preemptions")),
        ("prompt_tokens", "Prompt tokens of requests that began.", attrgetter("num_prompt_tokens")),
        ("prompt_tokens_cached", "Prompt tokens taken from the prefix cache.", attrgetter("num_cached_prompt_tokens")),
        ("generation_tokens", "Generated tokens.", attrgetter("num_generation_tokens")),
    ):
        yield families.counter(f"vllm:{name}", help, read)
    yield families.counters_by(
        "vllm:prompt_tokens_by_source",
        "Prompt tokens by where their KV came from.",
        "source",
        lambda engine: {
            "local_compute": engine.num_prompt_tokens - engine.num_cached_prompt_tokens,
            "local_cache_hit": engine.num_cached_prompt_tokens,
            "external_kv_transfer": 0,
        },
    )
    yield families.counters_by(
        "vllm:request_success",
        "Finished answers by reason.",
        "finished_reason",
        attrgetter("num_requests_by_reason"),
    )


def _drafts(families: EngineFamilies) -> Iterator[Metric]:
    """Yield them, as vLLM does, only where tokens are proposed."""
    for name, help, field in (
        ("num_drafts", "Verifications of a sequence's drafts.", "num_drafts"),
        ("num_draft_tokens", "Draft tokens.", "num_draft_tokens"),
        ("num_accepted_tokens", "Accepted draft tokens.", "num_accepted_tokens"),
    ):
        yield families.counter(f"vllm:spec_decode_{name}", help, _total(field))
    yield families.counters_by(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Accepted draft tokens by their position behind the sequence.",
        "position",
        attrgetter("accepted_per_position"),
    )


def _histograms(families: EngineFamilies) -> Iterator[Metric]:
    for name, help, field in (
        ("request_prompt_tokens", "Prompt tokens per answer.", "prompt_tokens"),
        ("request_generation_tokens", "Generated tokens per answer.", "generation_tokens"),
        ("request_max_num_generation_tokens", "Most tokens generated per request.", "max_generation_tokens"),
        ("request_params_n", "n of requests.", "params_n"),
        ("request_params_max_tokens", "max_tokens of requests.", "params_max_tokens"),
        ("iteration_tokens_total", "Tokens computed per step.", "iteration_tokens"),
        ("time_to_first_token_seconds", "From arrival to the first token.", "time_to_first_token"),
        ("inter_token_latency_seconds", "Between an answer's tokens.", "inter_token_latency"),
        ("request_time_per_output_token_seconds", "Mean per answer after its first token.", "time_per_output_token"),
        ("e2e_request_latency_seconds", "From arrival to the end.", "e2e_latency"),
        ("request_queue_time_seconds", "From arrival until first scheduled.", "queue_time"),
        ("request_inference_time_seconds", "From first scheduled to the last token.", "inference_time"),
        ("request_prefill_time_seconds", "From first scheduled to the first token.", "prefill_time"),
        ("request_decode_time_seconds", "From the first token to the last.", "decode_time"),
        ("request_num_preemptions", "Preemptions per request.", "num_preemptions_per_request"),
        ("request_prefill_kv_computed_tokens", "Prompt tokens computed per request.", "prefill_computed_tokens"),
    ):
        yield families.histogram(f"vllm:{name}", help, attrgetter(field))


# ---- ours


def _own(families: EngineFamilies) -> Iterator[Metric]:
    yield families.gauges_by(
        "kvplan:kv_blocks",
        "KV blocks: in use, free with KV that can be found again, free and empty.",
        "state",
        lambda engine: {
            "used": engine.stats.num_used_blocks,
            "cached": engine.stats.num_free_cached_blocks,
            "free": engine.stats.num_free_blocks - engine.stats.num_free_cached_blocks,
        },
    )
    yield families.gauge(
        "kvplan:num_requests_swapped", "Sequences in host memory.", lambda engine: engine.stats.num_swapped
    )
    yield families.gauge(
        "kvplan:kv_internal_fragmentation_bytes",
        "Slots of used blocks that held no KV in the last step.",
        lambda engine: engine.stats.internal_fragmentation_bytes,
    )
    for name, help, field in (
        ("swaps", "Preemptions that swapped.", "num_swaps"),
        ("recomputed_tokens", "Tokens computed again.", "recomputed_tokens"),
        ("blocked_admissions", "Steps in which no blocks were free for a waiting sequence.", "num_blocked_admissions"),
    ):
        yield families.counter(f"kvplan:{name}", help, _total(field))
    yield families.histogram("kvplan:step_seconds", "Time of a step.", attrgetter("step_seconds"))
