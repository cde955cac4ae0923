"""Metrics pages as engines write them. These were not recorded: names, labels and buckets are those of the sources that
profiles/metrics.json cites, the values are ours. What was recorded is in recorded/.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# vllm/v1/metrics/buckets.py, 0.33
TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
ITL_BUCKETS = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
LATENCY_BUCKETS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0)

VLLM_LABELS = 'engine="0",model_name="meta-llama/Llama-3.1-8B"'


def histogram_lines(name: str, bounds: Sequence[float], values: Sequence[float], labels: str) -> list[str]:
    """A histogram of ``values`` in prometheus_client's notation (le="1.0", le="+Inf")."""
    counts = [sum(value <= bound for value in values) for bound in bounds]
    lines = [f"# HELP {name} Histogram.", f"# TYPE {name} histogram"]
    lines += [
        f'{name}_bucket{{{labels},le="{bound}"}} {float(count)}' for bound, count in zip(bounds, counts, strict=True)
    ]
    lines += [f'{name}_bucket{{{labels},le="+Inf"}} {float(len(values))}']
    return [*lines, f"{name}_count{{{labels}}} {float(len(values))}", f"{name}_sum{{{labels}}} {sum(values)}"]


def _drafts(prefix: str, labels: str, num_drafts: float, *accepted: float) -> list[str]:
    name = f"{prefix}spec_decode_num"
    return [
        f"{name}_drafts_total{{{labels}}} {num_drafts}",
        f"{name}_draft_tokens_total{{{labels}}} {num_drafts * len(accepted)}",
        f"{name}_accepted_tokens_total{{{labels}}} {sum(accepted)}",
        *(f'{name}_accepted_tokens_per_pos_total{{{labels},position="{at}"}} {n}' for at, n in enumerate(accepted)),
    ]


def vllm_page(
    *,
    ttft: Sequence[float] = (),
    itl: Sequence[float] = (),
    queue: Sequence[float] = (),
    generation_tokens: float = 0.0,
    preemptions: float = 0.0,
    hits: float = 0.0,
    queries: float = 0.0,
    accepted: Sequence[float] | None = None,
    finished: Mapping[str, float] | None = None,
    running: float = 3.0,
    waiting: float = 2.0,
    usage: float = 0.42,
    labels: str = VLLM_LABELS,
    prefix: str = "vllm:",
) -> str:
    """A page of vLLM 0.33, with more on it than is read.

    accepted: drafts that were verified, and how many of their first, second, ... tokens were accepted.
    """
    reasons = finished or {"stop": 1.0, "length": 4.0, "abort": 0.0}
    lines = [
        "# HELP python_gc_objects_collected_total Objects collected during gc",
        "# TYPE python_gc_objects_collected_total counter",
        'python_gc_objects_collected_total{generation="0"} 12345.0',
        f"# TYPE {prefix}num_requests_running gauge",
        f"{prefix}num_requests_running{{{labels}}} {running}",
        f"{prefix}num_requests_waiting{{{labels}}} {waiting}",
        f'{prefix}num_requests_waiting_by_reason{{{labels},reason="capacity"}} {waiting}',
        f'{prefix}num_requests_waiting_by_reason{{{labels},reason="deferred"}} 0.0',
        f"{prefix}kv_cache_usage_perc{{{labels}}} {usage}",
        f"{prefix}num_preemptions_total{{{labels}}} {preemptions}",
        f"{prefix}num_preemptions_created{{{labels}}} 1.7637e+09",
        f"{prefix}prefix_cache_queries_total{{{labels}}} {queries}",
        f"{prefix}prefix_cache_hits_total{{{labels}}} {hits}",
        f"{prefix}prompt_tokens_total{{{labels}}} {queries}",
        f"{prefix}generation_tokens_total{{{labels}}} {generation_tokens}",
        *(
            f'{prefix}request_success_total{{{labels},finished_reason="{reason}"}} {count}'
            for reason, count in reasons.items()
        ),
        *histogram_lines(f"{prefix}time_to_first_token_seconds", TTFT_BUCKETS, ttft, labels),
        *histogram_lines(f"{prefix}inter_token_latency_seconds", ITL_BUCKETS, itl, labels),
        *histogram_lines(f"{prefix}request_queue_time_seconds", LATENCY_BUCKETS, queue, labels),
        *histogram_lines(f"{prefix}iteration_tokens_total", (1.0, 8.0, 16.0, 32.0), [4.0, 20.0], labels),
        *([] if accepted is None else _drafts(prefix, labels, *accepted)),
        f"# TYPE {prefix}cache_config_info gauge",
        f'{prefix}cache_config_info{{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",'
        'gpu_memory_utilization="0.9",kv_cache_max_concurrency="15.75",kv_cache_memory_bytes="None",'
        'kv_cache_size_tokens="8064",num_gpu_blocks="505",num_gpu_blocks_override="None"} 1.0',
    ]
    return "\n".join(lines) + "\n"


VLLM_0_8_PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 7.0
vllm:num_requests_waiting{model_name="m"} 0.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:gpu_prefix_cache_queries_total{model_name="m"} 80.0
vllm:gpu_prefix_cache_hits_total{model_name="m"} 20.0
vllm:num_preemptions_total{model_name="m"} 3.0
vllm:time_per_output_token_seconds_bucket{le="0.01",model_name="m"} 5.0
vllm:time_per_output_token_seconds_bucket{le="+Inf",model_name="m"} 10.0
vllm:time_per_output_token_seconds_sum{model_name="m"} 0.5
vllm:time_per_output_token_seconds_count{model_name="m"} 10.0
"""

# tp_rank 1 repeats tp_rank 0; num_running_reqs stands once in all and once for a priority; tokens by stream or not
SGLANG_PAGE = """\
sglang:num_running_reqs{dp_rank="0",model_name="q",priority="",tp_rank="0"} 3.0
sglang:num_running_reqs{dp_rank="0",model_name="q",priority="1",tp_rank="0"} 2.0
sglang:num_running_reqs{dp_rank="0",model_name="q",priority="",tp_rank="1"} 3.0
sglang:num_running_reqs{dp_rank="1",model_name="q",priority="",tp_rank="0"} 5.0
sglang:num_queue_reqs{dp_rank="0",model_name="q",priority="",tp_rank="0"} 1.0
sglang:num_queue_reqs{dp_rank="1",model_name="q",priority="",tp_rank="0"} 2.0
sglang:token_usage{dp_rank="0",model_name="q",tp_rank="0"} 0.5
sglang:token_usage{dp_rank="0",model_name="q",tp_rank="1"} 0.5
sglang:token_usage{dp_rank="1",model_name="q",tp_rank="0"} 0.9
sglang:max_total_num_tokens{dp_rank="0",model_name="q",tp_rank="0"} 60000.0
sglang:max_total_num_tokens{dp_rank="0",model_name="q",tp_rank="1"} 60000.0
sglang:max_total_num_tokens{dp_rank="1",model_name="q",tp_rank="0"} 60000.0
sglang:page_size{dp_rank="0",model_name="q",tp_rank="0"} 16.0
sglang:num_retracted_reqs{dp_rank="0",model_name="q",tp_rank="0"} 48.0
sglang:prompt_tokens_total{is_streaming="true",model_name="q"} 3000.0
sglang:prompt_tokens_total{is_streaming="false",model_name="q"} 1000.0
sglang:cached_tokens_total{cache_source="device",model_name="q"} 900.0
sglang:cached_tokens_total{cache_source="host",model_name="q"} 100.0
sglang:generation_tokens_total{is_streaming="true",model_name="q"} 640.0
"""

LLAMACPP_PAGE = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 200
llamacpp:prompt_tokens_cached_total 800
llamacpp:tokens_predicted_total 100
llamacpp:requests_processing 1
llamacpp:requests_deferred 4
llamacpp:n_tokens_max 99999
"""

TRTLLM_PAGE = """\
trtllm_num_requests_running{engine_type="trtllm",model_name="n"} 2.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="n"} 1.0
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="n"} 0.75
trtllm_kv_cache_hit_rate{engine_type="trtllm",model_name="n"} 0.4
trtllm_max_num_active_requests{engine_type="trtllm",model_name="n"} 64.0
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="n"} 1000.0
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="n"} 32.0
trtllm_generation_tokens_total{engine_type="trtllm",model_name="n"} 512.0
"""

# The example of TensorRT-LLM's documentation of trtllm-serve, with the queue's fields beside it.
TRTLLM_ITERATIONS = [
    {
        "gpuMemUsage": 76665782272,
        "iter": 154,
        "iterLatencyMS": 7.00688362121582,
        "kvCacheStats": {
            "allocNewBlocks": 3126, "allocTotalBlocks": 3126, "cacheHitRate": 0.00128, "freeNumBlocks": 101253,
            "maxNumBlocks": 101256, "missedBlocks": 3121, "reusedBlocks": 4, "tokensPerBlock": 32, "usedNumBlocks": 3,
        },
        "inflightBatchingStats": {"numPausedRequests": 1},
        "numActiveRequests": 1,
        "numQueuedRequests": 2,
        "maxNumActiveRequests": 2048,
    }
]  # fmt: skip
