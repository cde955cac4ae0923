"""What each engine calls its metrics. Several names for one figure: those of later and earlier releases, newest first.

vLLM 0.8 to 0.33: vllm/v1/metrics/loggers.py. ``gpu_cache_usage_perc`` became ``kv_cache_usage_perc`` in 0.9 and went
in 0.13, ``gpu_prefix_cache_*`` (blocks) became ``prefix_cache_*`` (tokens) in 0.9, ``time_per_output_token_seconds``
became ``inter_token_latency_seconds`` in 0.11; of ``spec_decode_*`` see vllm/v1/spec_decode/metrics.py. Ray Serve
prefixes them with ``ray_``. kvplan's server has vLLM's names.
SGLang 0.5: python/sglang/srt/metrics/collector.py; ``num_retracted_reqs`` is a gauge of the last batch, not a counter.
llama.cpp: tools/server/server-task.cpp; ``prompt_tokens_total`` leaves out cached tokens.
TensorRT-LLM 1.x: tensorrt_llm/metrics/collector.py, at /prometheus/metrics.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from kvplan.metrics.reading import EngineName

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MetricNames:
    """An engine's names for the fields of ServerReading, without the prefix. Empty: it has no such metric.

    prefixes: by which its page is recognised. prefix_blocks: names of the prefix cache's counters that count blocks.
    """

    engine: EngineName
    prefixes: Names
    num_running: Names = ()
    num_waiting: Names = ()
    waiting_by_reason: Names = ()
    kv_cache_usage: Names = ()
    kv_cache_used_tokens: Names = ()
    max_num_seqs: Names = ()
    num_preemptions: Names = ()
    prefix_cache_queries: Names = ()
    prefix_cache_hits: Names = ()
    prefix_blocks: Names = ()
    prefix_cache_hit_rate: Names = ()
    num_drafts: Names = ()
    num_draft_tokens: Names = ()
    num_accepted_tokens: Names = ()
    accepted_per_position: Names = ()
    mean_acceptance_length: Names = ()
    prompt_tokens: Names = ()
    generation_tokens: Names = ()
    output_throughput: Names = ()
    num_finished: Names = ()
    num_rejected: Names = ()
    ttft: Names = ()
    itl: Names = ()
    tpot: Names = ()
    e2e_latency: Names = ()
    queue_time: Names = ()
    prefill_time: Names = ()
    decode_time: Names = ()
    iteration_tokens: Names = ()
    cache_config: Names = ()
    kv_cache_size_tokens: Names = ()
    num_blocks: Names = ()
    block_size: Names = ()


_NOT_METRICS: Final = frozenset({"engine", "prefixes", "prefix_blocks"})


def all_names(names: MetricNames) -> frozenset[str]:
    """Every sample name of the engine that a reading needs, without the prefix."""
    metrics = [name for field in fields(names) if field.name not in _NOT_METRICS for name in getattr(names, field.name)]
    return frozenset(metrics) | {f"{name}_{part}" for name in metrics for part in ("bucket", "sum")}


VLLM: Final = MetricNames(
    engine="vllm",
    prefixes=("vllm:", "ray_vllm:", "ray_vllm_"),
    num_running=("num_requests_running",),
    num_waiting=("num_requests_waiting",),
    waiting_by_reason=("num_requests_waiting_by_reason",),
    kv_cache_usage=("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    num_preemptions=("num_preemptions_total", "num_preemptions"),
    prefix_cache_queries=("prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
    prefix_cache_hits=("prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
    prefix_blocks=("gpu_prefix_cache_queries_total", "gpu_prefix_cache_hits_total"),
    num_drafts=("spec_decode_num_drafts_total",),
    num_draft_tokens=("spec_decode_num_draft_tokens_total",),
    num_accepted_tokens=("spec_decode_num_accepted_tokens_total",),
    accepted_per_position=("spec_decode_num_accepted_tokens_per_pos_total",),
    prompt_tokens=("prompt_tokens_total",),
    generation_tokens=("generation_tokens_total",),
    num_finished=("request_success_total",),
    num_rejected=("admission_rejections_total",),
    ttft=("time_to_first_token_seconds",),
    itl=("inter_token_latency_seconds", "time_per_output_token_seconds"),
    tpot=("request_time_per_output_token_seconds",),
    e2e_latency=("e2e_request_latency_seconds",),
    queue_time=("request_queue_time_seconds",),
    prefill_time=("request_prefill_time_seconds",),
    decode_time=("request_decode_time_seconds",),
    iteration_tokens=("iteration_tokens_total",),
    cache_config=("cache_config_info",),
)

SGLANG: Final = MetricNames(
    engine="sglang",
    prefixes=("sglang:", "sglang_"),
    num_running=("num_running_reqs",),
    num_waiting=("num_queue_reqs",),
    kv_cache_usage=("token_usage",),
    kv_cache_used_tokens=("kv_used_tokens", "num_used_tokens"),
    num_preemptions=("num_retracted_requests_total",),
    prefix_cache_queries=("prompt_tokens_total",),
    prefix_cache_hits=("cached_tokens_total",),
    prefix_cache_hit_rate=("cache_hit_rate",),
    mean_acceptance_length=("spec_accept_length",),
    prompt_tokens=("prompt_tokens_total",),
    generation_tokens=("generation_tokens_total",),
    output_throughput=("gen_throughput",),
    num_finished=("num_requests_total",),
    ttft=("time_to_first_token_seconds",),
    itl=("inter_token_latency_seconds",),
    e2e_latency=("e2e_request_latency_seconds",),
    queue_time=("queue_time_seconds",),
    kv_cache_size_tokens=("max_total_num_tokens",),
    num_blocks=("num_pages",),
    block_size=("page_size",),
)

LLAMACPP: Final = MetricNames(
    engine="llamacpp",
    prefixes=("llamacpp:",),
    num_running=("requests_processing",),
    num_waiting=("requests_deferred",),
    kv_cache_usage=("kv_cache_usage_ratio",),  # until May 2025
    kv_cache_used_tokens=("kv_cache_tokens",),  # until May 2025
    prefix_cache_hits=("prompt_tokens_cached_total",),
    prompt_tokens=("prompt_tokens_total",),
    generation_tokens=("tokens_predicted_total",),
)

TRTLLM: Final = MetricNames(
    engine="trtllm",
    prefixes=("trtllm_", "trtllm:"),
    num_running=("num_requests_running",),
    num_waiting=("num_requests_waiting",),
    kv_cache_usage=("kv_cache_utilization",),
    max_num_seqs=("max_num_active_requests",),
    prefix_cache_hit_rate=("kv_cache_hit_rate",),
    prompt_tokens=("prompt_tokens_total",),
    generation_tokens=("generation_tokens_total",),
    num_finished=("request_success_total",),
    ttft=("time_to_first_token_seconds",),
    tpot=("time_per_output_token_seconds",),
    e2e_latency=("e2e_request_latency_seconds",),
    queue_time=("request_queue_time_seconds",),
    prefill_time=("request_prefill_time_seconds",),
    decode_time=("request_decode_time_seconds",),
    num_blocks=("kv_cache_max_blocks",),
    block_size=("kv_cache_tokens_per_block",),
)

ENGINES: Final = (VLLM, SGLANG, LLAMACPP, TRTLLM)

KVPLAN_PREFIX: Final = "kvplan:"
"""Metrics of kvplan's own server, beside vLLM's."""
