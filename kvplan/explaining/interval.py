"""Whether what a log printed lies in the interval that is predicted of its KV cache, and what may be why where not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kvplan.estimate.vllm.ranges import KvRange
from kvplan.explaining.account import AccountLine
from kvplan.explaining.startup_log import StartupLog
from kvplan.settings import option_of
from kvplan.units import GIB, format_bytes

_PRINTED: Final = GIB // 100
"""Logs print the pool in hundredths of a GiB."""
_DECIDE_THE_POOL: Final = ("gpu_memory_utilization", "max_num_batched_tokens", "max_num_seqs")
_TAKEN_FROM_THE_POOL: Final = (
    "weights",
    "activations (peak)",
    "activations and graphs",
    "outside torch",
    "outside torch, and state",
    "CUDA graphs, as estimated",
)
"""Lines of an account whose bytes the pool lacks: of graphs a release subtracts what it estimates, if anything."""
_MOST: Final = 0.5
"""The share of what the pool lacks from which on a single line is named for it."""


def outside_sentences(log: StartupLog, within: KvRange, parts: Sequence[AccountLine]) -> str | None:
    """Say that the log's cache lies outside ``within``, and what may be why. None where it does not, or is not told.

    ``parts``: the lines of the account, logged and predicted.
    """
    pool, tokens = log.memory.kv_pool_bytes, log.kv_cache_tokens
    if tokens is not None:
        seen, (low, high), rounding = tokens, within.tokens, 0
        said, between = f"{tokens:,} KV tokens", f"{low:,} to {high:,}"
    elif pool is not None:
        seen, (low, high), rounding = max(pool, 0), within.pool_bytes, _PRINTED
        said, between = f"{format_bytes(pool)} of KV cache", f"{format_bytes(low)} to {format_bytes(high)}"
    else:
        return None
    if low - rounding <= seen <= high + rounding:
        return None
    side = ("fewer" if tokens is not None else "less") if seen < low else "more"
    first = f"The log has {said}, {side} than predicted: 9 of 10 start-ups like it have {between}."
    return " ".join([first, *_reasons(log, parts)])


def _reasons(log: StartupLog, parts: Sequence[AccountLine]) -> Iterator[str]:
    """The line of the account that explains most; else what was assumed; else what no log says."""
    apart = {part.name: _apart(part) for part in parts}
    lacks = -apart.get("KV cache", 0)
    for name in _TAKEN_FROM_THE_POOL:
        if lacks and apart.get(name, 0) / lacks >= _MOST:
            more = "more" if apart[name] > 0 else "less"
            yield f"Most of that is in '{name}', {format_bytes(abs(apart[name]))} {more} than predicted."
            return
    unstated = [option_of(each) for each in _DECIDE_THE_POOL if getattr(log.settings, each) is None]
    if not log.gpu_names and log.memory.total_bytes is None:
        unstated.insert(0, "the GPU")
    if unstated:
        yield f"The log does not state {', '.join(unstated)}: give the ones that were not as assumed here."
    else:
        yield "Other programs on the GPU may have held memory, or a setting that logs do not state was another."


def _apart(part: AccountLine) -> int:
    if part.logged_bytes is None or part.predicted_bytes is None:
        return 0
    return part.logged_bytes - part.predicted_bytes
