"""What a vLLM that is up says of itself: in its log as ``kvplan explain`` reads it, and on its metrics page."""

from __future__ import annotations

from kvplan.engines.interface import StartedEngine
from kvplan.explaining.startup_log import parse_startup_log
from kvplan.metrics.reading import ServerReading


def read_start(log: str, reading: ServerReading | None) -> StartedEngine:
    """Tokens and concurrency as printed, in bytes to a hundredth of a GiB; blocks as the metrics page has them."""
    found = parse_startup_log(log)
    cache = None if reading is None else reading.cache
    settings = {
        "block_size": None if cache is None else cache.block_size,
        "max_model_len": found.settings.max_model_len,
    }
    return StartedEngine(
        version=found.version,
        kv_cache_tokens=found.kv_cache_tokens,
        num_blocks=found.num_blocks if cache is None else cache.num_blocks,
        block_size=None if cache is None else cache.block_size,
        weights_bytes=found.memory.weight_bytes,
        activation_bytes=found.memory.activation_bytes,
        graph_bytes=found.memory.graph_bytes,
        overhead_bytes=found.memory.non_torch_bytes,
        budget_bytes=found.memory.budget_bytes,
        max_concurrency=found.max_concurrency,
        dtype=found.settings.dtype if found.settings.dtype != "auto" else None,
        kv_cache_dtype=found.settings.kv_cache_dtype if found.settings.kv_cache_dtype != "auto" else None,
        resolved={name: value for name, value in settings.items() if value is not None},
    )
