"""How fast it served: throughput, and latencies as the client saw them."""

from __future__ import annotations

from typing import Annotated, Final, TypedDict

from kvplan.runs.columns.about import About

_LATENCIES: Final = {
    "ttft": "time to first token: first token minus the request's arrival",
    "tpot": "time per output token of one request: (latency - TTFT) / (output tokens - 1)",
    "itl": "inter-token latency: all gaps between consecutive tokens, pooled over requests",
    "e2el": "end-to-end latency: last token minus the request's arrival",
}
_STATISTICS: Final = {
    "mean": "mean",
    "median": "median",
    "std": "standard deviation",
    "p90": "90th percentile",
    "p95": "95th percentile",
    "p99": "99th percentile",
    "p99_9": "99.9th percentile (of fewer than 1,000 values: near the largest)",
}


def _latency(statistic: str, latency: str) -> About:
    return About(f"{_STATISTICS[statistic]} of {_LATENCIES[latency]}", "ms")


class ThroughputColumns(TypedDict, total=False):
    """Group ``throughput``."""

    duration: Annotated[float | None, About("first arrival to last token", "s")]
    completed: Annotated[int | None, About("requests served to completion", "requests")]
    failed: Annotated[int | None, About("requests refused or aborted", "requests")]
    total_input_tokens: Annotated[int | None, About("prompt tokens of the completed requests", "tokens")]
    total_output_tokens: Annotated[int | None, About("generated tokens of the completed requests", "tokens")]
    request_throughput: Annotated[float | None, About("completed / duration", "requests/s")]
    output_throughput: Annotated[
        float | None,
        About(
            "total_output_tokens / duration; after warm-up requests: all tokens that came within it / duration",
            "tokens/s",
        ),
    ]
    total_token_throughput: Annotated[
        float | None, About("(total_input_tokens + total_output_tokens) / duration", "tokens/s")
    ]
    max_concurrent_requests: Annotated[int | None, About("peak number of requests in flight", "requests")]


class LatencyColumns(TypedDict, total=False):
    """Group ``latency``."""

    mean_ttft_ms: Annotated[float | None, _latency("mean", "ttft")]
    median_ttft_ms: Annotated[float | None, _latency("median", "ttft")]
    std_ttft_ms: Annotated[float | None, _latency("std", "ttft")]
    p90_ttft_ms: Annotated[float | None, _latency("p90", "ttft")]
    p95_ttft_ms: Annotated[float | None, _latency("p95", "ttft")]
    p99_ttft_ms: Annotated[float | None, _latency("p99", "ttft")]
    p99_9_ttft_ms: Annotated[float | None, _latency("p99_9", "ttft")]
    mean_tpot_ms: Annotated[float | None, _latency("mean", "tpot")]
    median_tpot_ms: Annotated[float | None, _latency("median", "tpot")]
    std_tpot_ms: Annotated[float | None, _latency("std", "tpot")]
    p90_tpot_ms: Annotated[float | None, _latency("p90", "tpot")]
    p95_tpot_ms: Annotated[float | None, _latency("p95", "tpot")]
    p99_tpot_ms: Annotated[float | None, _latency("p99", "tpot")]
    p99_9_tpot_ms: Annotated[float | None, _latency("p99_9", "tpot")]
    mean_itl_ms: Annotated[float | None, _latency("mean", "itl")]
    median_itl_ms: Annotated[float | None, _latency("median", "itl")]
    std_itl_ms: Annotated[float | None, _latency("std", "itl")]
    p90_itl_ms: Annotated[float | None, _latency("p90", "itl")]
    p95_itl_ms: Annotated[float | None, _latency("p95", "itl")]
    p99_itl_ms: Annotated[float | None, _latency("p99", "itl")]
    p99_9_itl_ms: Annotated[float | None, _latency("p99_9", "itl")]
    mean_e2el_ms: Annotated[float | None, _latency("mean", "e2el")]
    median_e2el_ms: Annotated[float | None, _latency("median", "e2el")]
    std_e2el_ms: Annotated[float | None, _latency("std", "e2el")]
    p90_e2el_ms: Annotated[float | None, _latency("p90", "e2el")]
    p95_e2el_ms: Annotated[float | None, _latency("p95", "e2el")]
    p99_e2el_ms: Annotated[float | None, _latency("p99", "e2el")]
    p99_9_e2el_ms: Annotated[float | None, _latency("p99_9", "e2el")]
    mean_sent_ttft_ms: Annotated[
        float | None, About("mean time to first token from sending, not from the schedule", "ms")
    ]
    p99_sent_ttft_ms: Annotated[float | None, About("99th percentile of the same", "ms")]
