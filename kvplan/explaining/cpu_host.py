"""vLLM on a CPU: the cache is VLLM_CPU_KVCACHE_SPACE (GiB), or what --gpu-memory-utilization leaves of the host.

Read in vllm/v1/worker/cpu_worker.py and vllm/platforms/cpu.py. Without the variable, releases took 4 GiB at first, then
half of a memory node, and now the share of the node that --gpu-memory-utilization says, less what the process holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.dtypes import cache_dtype, serving_dtype
from kvplan.estimate.kv_cache import KvCacheSize, size_sequence
from kvplan.estimate.weights import size_weights
from kvplan.explaining.startup_log import StartupLog
from kvplan.explaining.ways_out import SuggestedChange, or_lower_to
from kvplan.units import GIB, format_bytes


def weight_bytes(log: StartupLog, spec: ModelSpec) -> int:
    """The weights as loaded, on all ranks."""
    return size_weights(spec, serving_dtype(spec.dtype, log.settings.dtype)).total_bytes


def sequence_size(log: StartupLog, spec: ModelSpec) -> KvCacheSize | None:
    """One sequence of the log's longest length; None where the length is not known. KvplanError as size_sequence."""
    length = log.settings.max_model_len or spec.max_position_embeddings
    dtype = serving_dtype(spec.dtype, log.settings.dtype)
    cache = CacheSettings(
        model_dtype=dtype,
        kv_dtype=cache_dtype(dtype, log.settings.kv_cache_dtype),
        tensor_parallel_size=log.settings.tensor_parallel_size,
    )
    return None if length is None else size_sequence(spec, length, cache)


def pool_tokens(log: StartupLog, size: KvCacheSize) -> int | None:
    """Tokens that the logged pool holds, without rounding to blocks; None for caches that grow otherwise."""
    pool = log.memory.kv_pool_bytes
    if pool is None or size.fixed_bytes_per_sequence or not size.bytes_per_token:
        return None
    return max(pool, 0) // size.bytes_per_token


def cpu_changes(log: StartupLog, size: KvCacheSize | None) -> Iterator[SuggestedChange]:
    """What makes room on a CPU, in vLLM's own knobs."""
    memory = log.memory
    if log.crash is not None:
        return
    if log.failure is None:
        yield _more_room(log, size)
        return
    if "less than desired" in log.failure:
        yield from _busy_host(log)
    elif "requested memory for kv" in log.failure or memory.used_bytes is not None:
        yield from _no_room(log)
    elif memory.needed_kv_bytes is not None:
        if log.largest_max_model_len:
            yield SuggestedChange(
                f"lower --max-model-len to {log.largest_max_model_len} or less, or make room for the cache"
            )
        space = math.ceil(memory.needed_kv_bytes / GIB)
        yield SuggestedChange(
            f"set VLLM_CPU_KVCACHE_SPACE={space} (GiB), which holds one request of the maximum length"
        )


def _more_room(log: StartupLog, size: KvCacheSize | None) -> SuggestedChange:
    """What one GiB more would hold, and how to give it."""
    gained = GIB // size.bytes_per_token if size is not None and size.bytes_per_token else None
    if log.memory.used_bytes is not None:
        return SuggestedChange(
            "for 1 GiB more of KV cache raise --gpu-memory-utilization, on a CPU a share of the host's memory, "
            "or set VLLM_CPU_KVCACHE_SPACE (GiB)",
            gained,
        )
    pool = log.memory.kv_pool_bytes
    now = f" (now {pool / GIB:g} GiB)" if pool is not None else ""
    return SuggestedChange(f"for 1 GiB more of KV cache raise VLLM_CPU_KVCACHE_SPACE{now}", gained)


def _busy_host(log: StartupLog) -> Iterator[SuggestedChange]:
    memory = log.memory
    if not memory.free_bytes or not memory.total_bytes:
        return
    lower = or_lower_to(memory.free_bytes / memory.total_bytes)
    yield SuggestedChange(
        f"only {format_bytes(memory.free_bytes)} of the host's {format_bytes(memory.total_bytes)} is free: stop other "
        f"programs{lower}, or set VLLM_CPU_KVCACHE_SPACE (GiB) instead"
    )


def _no_room(log: StartupLog) -> Iterator[SuggestedChange]:
    """Nothing was left of the share for the cache, or the cache is larger than what is free."""
    memory = log.memory
    pool, budget, total, free = memory.kv_pool_bytes, memory.budget_bytes, memory.total_bytes, memory.free_bytes
    if memory.used_bytes is not None and log.least_share is not None:
        yield SuggestedChange(
            f"the process holds {format_bytes(memory.used_bytes)} before any KV cache: raise --gpu-memory-utilization, "
            f"on a CPU a share of the host's memory, above {log.least_share:g}, or set VLLM_CPU_KVCACHE_SPACE (GiB)"
        )
    elif pool is not None and pool <= 0 and budget is not None and total:
        used = budget - pool
        share = math.ceil(used / total * 100) / 100
        raised = f"raise --gpu-memory-utilization above {share}, or " if share < 1 else ""
        yield SuggestedChange(
            f"the process holds {format_bytes(used)} before any KV cache: {raised}set VLLM_CPU_KVCACHE_SPACE (GiB)"
        )
    elif pool is not None and free is not None:
        space = f"VLLM_CPU_KVCACHE_SPACE below {free / GIB:.3g}"
        if "--kv-cache-memory-bytes" in (log.failure or ""):
            space = f"--kv-cache-memory-bytes below {format_bytes(free)} (or {space})"
        knob = "--gpu-memory-utilization" if budget is not None else space
        yield SuggestedChange(
            f"{format_bytes(pool)} was asked for the KV cache and {format_bytes(free)} is free: lower {knob}, or "
            "stop other programs"
        )
