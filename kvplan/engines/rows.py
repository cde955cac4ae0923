"""Rows of trials that another engine served: what it said when it was up, what the load measured, how it failed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from kvplan.engines.interface import Failure, StartedEngine
from kvplan.load.run import LoadRun
from kvplan.metrics.reading import ServerReading
from kvplan.runs.columns import Row
from kvplan.sweeps.forecast.under_load import PreparedTrial
from kvplan.workload.requests import RequestSpec

_KNOWN_BEFORE: Final = (
    "engine",
    "engine_version",
    "kernels",
    "device",
    "device_memory_bytes",
    "dtype",
    "kv_cache_tokens",
    "max_num_seqs",
)


def told_row(told: StartedEngine) -> Row:
    """What a server that is up holds. Only what it says."""
    row: Row = {
        "engine_version": told.version,
        "kv_cache_tokens": told.kv_cache_tokens,
        "num_blocks_total": told.num_blocks,
        "kv_pool_bytes": told.kv_pool_bytes,
        "weights_bytes": told.weights_bytes,
        "weights_origin": "loaded" if told.weights_bytes is not None else None,
        "activation_peak_bytes": told.activation_bytes,
        "graph_bytes": told.graph_bytes,
        "overhead_bytes": told.overhead_bytes,
        "budget_bytes": told.budget_bytes,
    }
    if told.dtype is not None:
        row["dtype"] = told.dtype
    if told.kv_cache_dtype is not None:
        row["kv_cache_dtype"] = told.kv_cache_dtype
    return row


def failed_row(failure: Failure) -> Row:
    """A failure in the sweep's columns."""
    return {
        "status": failure.status,
        "error": failure.error,
        "oom_phase": failure.oom_phase,
        "largest_max_model_len": failure.largest_max_model_len,
        "context_limited_by": failure.context_limited_by,
        "oom_requested_bytes": failure.oom_requested_bytes,
        "oom_free_bytes": failure.oom_free_bytes,
    }


def served_row(
    run: LoadRun, prepared: PreparedTrial, slo_seconds: Mapping[str, float], kv_cache_tokens: int | None
) -> Row:
    """What the load measured. Settings, engine and capacity stay as they were asked for and said at the start."""
    row = run.row(slo_seconds)
    for known in _KNOWN_BEFORE:
        row.pop(known, None)  # type: ignore[misc]
    settings, requests = prepared.trial.settings, prepared.prediction.requests.requests
    is_served = row["status"] in ("ok", "queued")
    if is_served and kv_cache_tokens is not None:
        waited = waited_for_blocks(
            run.server.readings, requests, settings.max_num_seqs, settings.block_size, kv_cache_tokens
        )
        row["status"] = "queued" if waited else "ok"
    if row.get("kv_usage_max") is None and kv_cache_tokens:
        row |= usage_of_tokens(run.server.within, kv_cache_tokens)
    return row


def usage_of_tokens(readings: Sequence[ServerReading], kv_cache_tokens: int) -> Row:
    """Return the columns of a server that tells the tokens it holds, not their share: that of all that it can hold."""
    held = [reading.kv_cache_used_tokens for reading in readings if reading.kv_cache_used_tokens is not None]
    if not held:
        return {}
    shares = [tokens / kv_cache_tokens for tokens in held]
    return {"kv_usage_mean": sum(shares) / len(shares), "kv_usage_max": max(shares)}


def waited_for_blocks(
    readings: Sequence[ServerReading],
    requests: Sequence[RequestSpec],
    max_num_seqs: int,
    block_size: int,
    kv_cache_tokens: int,
) -> bool:
    """Whether at some reading a request waited, a seat was free, and the pool had no room for the longest prompt."""
    longest = max((request.num_prompt_tokens for request in requests), default=0)
    needed = math.ceil(longest / block_size) * block_size
    return any(
        bool(reading.num_waiting)
        and (reading.num_running or 0) < max_num_seqs
        and (1 - (reading.kv_cache_usage_highest or 0.0)) * kv_cache_tokens < needed
        for reading in readings
    )
