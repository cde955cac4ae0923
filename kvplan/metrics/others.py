"""TensorRT-LLM's own /metrics: a JSON list of iteration statistics since it was read last.

Reading empties the server's buffer, so of two readers each gets a part: the Prometheus page is preferred where there is
one. The list is empty until ``enable_iter_perf_stats`` is set and a request has come.

llama-server's /slots: what its metrics page stopped telling in May 2025 (#13660), how many tokens are held.

A slot is a place for one sequence: ``n_ctx`` tokens at most, of which ``n_prompt_tokens`` (prompt and answer) are in
the cache. An idle slot keeps those of its last sequence until another takes it, so idle ones count as free. Whether
slots share one pool (``--kv-unified``, the default where ``--parallel`` is not given) is told nowhere: then all of them
cannot be filled at once, and a share of the pool is not known. tools/server/server-context.cpp, b11434.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from kvplan.metrics.prometheus import figure_of
from kvplan.metrics.reading import CacheConfig, ServerReading

_LARGEST: Final = 2**53
"""More is no number of tokens."""


def read_iterations(document: object, seconds: float | None = None) -> ServerReading | None:
    """The newest iteration as a reading; None for anything but a list that holds one.

    Counters are left out: the list holds only what was not read before.
    """
    if not isinstance(document, list) or not document or not isinstance(document[-1], Mapping):
        return None
    newest: Mapping[str, Any] = document[-1]
    pool = newest.get("kvCacheStats")
    pool = pool if isinstance(pool, Mapping) else {}
    batch = newest.get("inflightBatchingStats")
    batch = batch if isinstance(batch, Mapping) else {}
    blocks, used, size = (_amount(pool.get(name)) for name in ("maxNumBlocks", "usedNumBlocks", "tokensPerBlock"))
    usage = used / blocks if used is not None and blocks else None
    seats = _amount(newest.get("maxNumActiveRequests"))
    return ServerReading(
        engine="trtllm",
        seconds=time.perf_counter() if seconds is None else seconds,
        num_running=_amount(newest.get("numActiveRequests")),
        num_waiting=_sum(newest.get("numQueuedRequests"), batch.get("numPausedRequests")),
        kv_cache_usage=usage,
        kv_cache_usage_highest=usage,
        kv_cache_used_tokens=used * size if used is not None and size is not None else None,
        max_num_seqs=None if seats is None else int(seats),
        prefix_cache_hit_rate=_amount(pool.get("cacheHitRate")),
        prefix_unit="blocks",
        cache=CacheConfig(
            num_blocks=None if blocks is None else int(blocks),
            block_size=None if size is None else int(size),
            kv_cache_size_tokens=int(blocks * size) if blocks is not None and size is not None else None,
        ),
    )


def _amount(value: object) -> float | None:
    """A figure that counts something; None for any other, and below 0."""
    found = figure_of(value)
    return None if found is None or found < 0 else found


def _sum(first: object, second: object) -> float | None:
    """Requests that wait: queued ones, with those that were paused where the server tells."""
    queued = _amount(first)
    return None if queued is None else queued + (_amount(second) or 0.0)


def with_slots(reading: ServerReading, document: object) -> ServerReading:
    """The reading with what the slots hold; as it was for anything but a list of slots."""
    if not isinstance(document, list) or not document or not all(isinstance(slot, Mapping) for slot in document):
        return reading
    busy = [slot for slot in document if slot.get("is_processing")]
    held = [_count(slot, "n_prompt_tokens") for slot in busy]
    known = [tokens for tokens in held if tokens is not None]
    return replace(
        reading,
        num_slots=len(document),
        slot_tokens=_count(document[0], "n_ctx"),
        kv_cache_used_tokens=float(sum(known)) if len(known) == len(held) else None,
    )


def _count(slot: Mapping[str, Any], name: str) -> int | None:
    value = slot.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST else None
