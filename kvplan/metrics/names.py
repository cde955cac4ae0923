"""What each engine calls its metrics: ``profiles/metrics.json``, which says where its names stand."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from kvplan.metrics.reading import EngineName
from kvplan.paths import read_shipped

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


def _names(row: dict[str, Any]) -> MetricNames:
    del row["source"]
    found: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    return MetricNames(**found)


ENGINES: Final = read_shipped("metrics.json", lambda document: tuple(map(_names, document["engines"])))

KVPLAN_PREFIX: Final = "kvplan:"
"""Metrics of kvplan's own server, beside vLLM's."""
