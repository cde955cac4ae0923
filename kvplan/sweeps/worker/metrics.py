"""The figures of a finished trial, from its recorded times. The definitions are those of vLLM's ``bench serve``.

Checked against vllm/benchmarks/serve.py (`calculate_metrics`): TPOT per request over the tokens after the first, only
for requests with more than one; ITL pooled; percentiles by linear interpolation; population standard deviation; the
most requests in flight over half-open intervals, a departure before an arrival at the same instant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np

from kvplan.runs.columns import Row
from kvplan.runs.directory import Series

_DRAFTS: Final = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
PERCENTILES: Final = {"p90": 90.0, "p95": 95.0, "p99": 99.0, "p99_9": 99.9}
"""Of each latency, under the names of their columns; vLLM writes p99.9, which no name in Python can."""


@dataclass(slots=True)
class RequestTrace:
    """What happened to one request. Times in seconds on one clock; ``token_times`` has one entry per output token.

    due_seconds: when the workload wanted it sent; None: whenever it was. error: why it was refused.
    """

    request_id: str
    num_prompt_tokens: int
    arrival_seconds: float
    token_times: list[float]
    finished: bool = False
    due_seconds: float | None = None
    num_cached_tokens: int | None = None
    error: str | None = None

    @property
    def ttft_seconds(self) -> float:
        return self.token_times[0] - self.arrival_seconds

    @property
    def latency_seconds(self) -> float:
        return self.token_times[-1] - self.arrival_seconds

    @property
    def tpot_seconds(self) -> float | None:
        """None for a request with a single output token."""
        if len(self.token_times) < 2:
            return None
        return (self.latency_seconds - self.ttft_seconds) / (len(self.token_times) - 1)


def serving_figures(traces: Sequence[RequestTrace], duration_seconds: float) -> Row:
    """Throughput and latency of a trial, under vLLM's names. Only completed requests count; times are in ms."""
    completed = [trace for trace in traces if trace.finished and trace.token_times]
    num_input = sum(trace.num_prompt_tokens for trace in completed)
    num_output = sum(len(trace.token_times) for trace in completed)
    figures: Row = {
        "duration": duration_seconds,
        "completed": len(completed),
        "failed": len(traces) - len(completed),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(completed) / duration_seconds,
        "output_throughput": num_output / duration_seconds,
        "total_token_throughput": (num_input + num_output) / duration_seconds,
        "max_concurrent_requests": peak_concurrency(completed),
    }
    # drafts that a step accepted come with the token behind them: one arrival, as one chunk is in vLLM's benchmark
    gaps = [gap for trace in completed for gap in np.diff(np.unique(trace.token_times))]
    tpots = [trace.tpot_seconds for trace in completed if trace.tpot_seconds is not None]
    figures |= latency_statistics("ttft", [trace.ttft_seconds for trace in completed])
    figures |= latency_statistics("tpot", tpots)
    figures |= latency_statistics("itl", gaps)
    figures |= latency_statistics("e2el", [trace.latency_seconds for trace in completed])
    return figures


def latency_statistics(name: str, seconds: Sequence[float]) -> Row:
    """Return the latency columns of ``name``: ttft, tpot, itl or e2el."""
    if not seconds:
        return cast(Row, {f"{key}_{name}_ms": None for key in ("mean", "median", "std", *PERCENTILES)})
    percentiles = np.percentile(seconds, list(PERCENTILES.values()))
    figures = {
        f"mean_{name}_ms": float(np.mean(seconds) * 1000),
        f"median_{name}_ms": float(np.median(seconds) * 1000),
        f"std_{name}_ms": float(np.std(seconds) * 1000),
    }
    figures |= {f"{key}_{name}_ms": float(value * 1000) for key, value in zip(PERCENTILES, percentiles, strict=True)}
    return cast(Row, figures)


def goodput_figures(traces: Sequence[RequestTrace], duration_seconds: float, slo_seconds: Mapping[str, float]) -> Row:
    """Requests that met every objective (bounds of ``ttft``, ``tpot``, ``e2el``); nothing without objectives.

    A request with a single token has a TPOT of 0, as in vLLM. A failed request is never good. slo_pass: the 99th
    percentile of every objective holds and no request failed.
    """
    if not slo_seconds:
        return {}
    completed = [trace for trace in traces if trace.finished and trace.token_times]
    values = {
        "ttft": np.array([trace.ttft_seconds for trace in completed]),
        "tpot": np.array([trace.tpot_seconds or 0.0 for trace in completed]),
        "e2el": np.array([trace.latency_seconds for trace in completed]),
    }
    good = np.ones(len(completed), dtype=bool)
    passes = bool(completed) and len(completed) == len(traces)
    for name, bound in slo_seconds.items():
        good &= values[name] <= bound
        passes = passes and bool(np.percentile(values[name], 99) <= bound)
    return {
        "request_goodput": float(good.sum()) / duration_seconds,
        "goodput_pct": 100 * float(good.sum()) / len(traces) if traces else 0.0,
        "slo_pass": passes,
    }


def draft_figures(before: Mapping[str, Any], after: Mapping[str, Any]) -> Row:
    """What became of the drafts between two of the engine's stats; nothing without speculation."""
    if "spec_decode_num_drafts" not in after:
        return {}
    grown = {name: after[f"spec_decode_{name}"] - before[f"spec_decode_{name}"] for name in _DRAFTS}
    name = "spec_decode_num_accepted_tokens_per_pos"
    positions = [now - then for now, then in zip(after[name], before[name], strict=True)]
    drafts, tokens, accepted = (grown[each] for each in _DRAFTS)
    return {
        "num_drafts": drafts,
        "num_draft_tokens": tokens,
        "num_accepted_tokens": accepted,
        "acceptance_rate": accepted / tokens if tokens else None,
        "mean_acceptance_length": 1 + accepted / drafts if drafts else None,
        "accepted_per_position": " ".join(f"{each / drafts:.3f}" for each in positions) if drafts else None,
    }


def peak_concurrency(traces: Sequence[RequestTrace]) -> int:
    """Most requests in flight at once, each from its arrival to its last token."""
    events = [(trace.arrival_seconds, 1) for trace in traces]
    events += [(trace.token_times[-1], -1) for trace in traces]
    current = peak = 0
    for _, change in sorted(events):
        current += change
        peak = max(peak, current)
    return peak


@dataclass(frozen=True, slots=True)
class StepSample:
    """The engine after one step. ``seconds`` since the first arrival; ``step_seconds`` weights the step in means.

    num_used_tokens: slots of used blocks that hold a token (a shared block counts once). num_running_tokens: computed
    tokens of the running sequences, each counted by itself. num_cached_tokens: found in the prefix cache so far.
    """

    seconds: float
    step_seconds: float
    num_running: int
    num_waiting: int
    num_used_blocks: int
    num_used_tokens: int
    num_running_tokens: int
    num_new_tokens: int
    num_cached_tokens: int = 0


def occupancy_figures(
    samples: Sequence[StepSample], *, num_blocks: int, block_size: int, block_bytes: int, max_model_len: int
) -> Row:
    """Block occupancy and waste of a trial; means are over time (each step weighs as long as it took).

    kv_waste_pct is the share of allocated slots that hold no token. contiguous_utilization_pct is the share of
    memory that the same running sequences would use if each had reserved max_model_len slots when it started.
    """
    if not samples:
        return {}
    weights = np.array([sample.step_seconds for sample in samples])
    if weights.sum() <= 0:
        weights = np.ones(len(samples))
    used_blocks = np.array([sample.num_used_blocks for sample in samples], dtype=np.float64)
    tokens = np.array([sample.num_used_tokens for sample in samples], dtype=np.float64)
    running = np.array([sample.num_running for sample in samples], dtype=np.float64)
    slots = used_blocks * block_size
    usage = used_blocks / num_blocks
    running_tokens = np.array([sample.num_running_tokens for sample in samples], dtype=np.float64)
    reserved = float(weights @ (running * max_model_len))
    allocated = float(weights @ slots)
    waste_pct = 100 * float(weights @ (slots - tokens)) / allocated if allocated else None
    return {
        "kv_usage_mean": float(np.average(usage, weights=weights)),
        "kv_usage_p95": weighted_percentile(usage, weights, 95),
        "kv_usage_max": float(usage.max()),
        "internal_frag_bytes_mean": float(np.average(slots - tokens, weights=weights)) * block_bytes / block_size,
        "kv_waste_pct": waste_pct,
        "frag_pct": waste_pct,
        "contiguous_utilization_pct": 100 * float(weights @ running_tokens) / reserved if reserved else None,
        "max_running": int(running.max()),
        "max_waiting": max(sample.num_waiting for sample in samples),
        "num_steps": len(samples),
    }


def weighted_percentile(values: np.ndarray, weights: np.ndarray, percent: float) -> float:
    """The smallest value such that at least ``percent`` of the weight is at or below it."""
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order])
    index = int(np.searchsorted(cumulative, percent / 100 * cumulative[-1]))
    return float(values[order][min(index, len(values) - 1)])


def downsampled_series(samples: Sequence[StepSample], num_blocks: int, most_points: int = 400) -> Series:
    """The trial over time as equally long lists. Steps that share a point are merged: peaks stay, rates average."""
    series: Series = {
        "seconds": [],
        "kv_usage": [],
        "num_running": [],
        "num_waiting": [],
        "used_tokens": [],
        "cached_tokens": [],
        "output_tokens_per_second": [],
        "step_seconds": [],
    }
    stride = -(-len(samples) // most_points) or 1
    for start in range(0, len(samples), stride):
        group = samples[start : start + stride]
        seconds = sum(sample.step_seconds for sample in group)
        series["seconds"].append(round(group[-1].seconds, 5))
        series["step_seconds"].append(round(seconds, 6))
        series["kv_usage"].append(round(max(sample.num_used_blocks for sample in group) / num_blocks, 6))
        series["num_running"].append(max(sample.num_running for sample in group))
        series["num_waiting"].append(max(sample.num_waiting for sample in group))
        series["used_tokens"].append(max(sample.num_used_tokens for sample in group))
        series["cached_tokens"].append(group[-1].num_cached_tokens)
        new_tokens = sum(sample.num_new_tokens for sample in group)
        series["output_tokens_per_second"].append(round(new_tokens / seconds, 3) if seconds > 0 else 0.0)
    return series
