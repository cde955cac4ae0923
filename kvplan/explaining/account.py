"""The lines of an account: where the log's memory went, beside what is predicted of each part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvplan.estimate.vllm.prediction import VllmPrediction
from kvplan.estimate.vllm.ranges import KvRange
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


@dataclass(frozen=True, slots=True)
class AccountLine:
    """One line of the account: bytes as logged and as predicted, None where one of them is not known."""

    name: str
    logged_bytes: int | None
    predicted_bytes: int | None


@dataclass(frozen=True, slots=True)
class Counts:
    """The capacity that was predicted; None where it is not known. ``tokens_range``: what 9 of 10 start-ups have."""

    kv_cache_tokens: int | None = None
    num_blocks: int | None = None
    max_concurrency: float | None = None
    tokens_range: tuple[int, int] | None = None


_PARTS: tuple[tuple[str, str, Callable[[VllmPrediction], int]], ...] = (
    ("GPU in all", "total_bytes", lambda found: found.settings.serving.device_memory_bytes),
    ("the engine may use", "budget_bytes", lambda found: found.rank.requested_bytes),
    ("weights", "weight_bytes", lambda found: found.rank.weight_bytes),
    ("activations (peak)", "activation_bytes", lambda found: found.rank.activation.peak_bytes),
    ("outside torch", "non_torch_bytes", lambda found: found.rank.non_torch_bytes),
    ("CUDA graphs", "graph_bytes", lambda found: found.rank.cudagraph_bytes),
    ("KV cache", "kv_pool_bytes", lambda found: found.rank.available_kv_bytes),
)
"""Name, where the log has it, and where the prediction has it."""


def parts_of(log: StartupLog, prediction: VllmPrediction | None) -> tuple[AccountLine, ...]:
    parts = [
        AccountLine(name, getattr(log.memory, field), None if prediction is None else predicted(prediction))
        for name, field, predicted in _PARTS
    ]
    memory, rank = log.memory, None if prediction is None else prediction.rank
    if memory.graph_estimate_bytes not in (None, memory.graph_bytes):
        budgeted = None if rank is None or not rank.subtracted_graph_bytes else rank.subtracted_graph_bytes
        parts.insert(-1, AccountLine("CUDA graphs, as estimated", memory.graph_estimate_bytes, budgeted))
    if memory.peak_with_graphs_bytes is not None:
        peak = None if rank is None else rank.activation.peak_bytes + rank.subtracted_graph_bytes
        parts[_PEAK] = AccountLine("activations and graphs", memory.peak_with_graphs_bytes, peak)
    if rank is not None and rank.state_bytes:
        # No log has it apart: vLLM prints it as consumed, with the weights and what is outside torch.
        if memory.consumed_bytes is None:
            parts.insert(-1, AccountLine("state of requests", None, rank.state_bytes))
        else:
            outside = rank.non_torch_bytes + rank.state_bytes
            parts[_OUTSIDE] = AccountLine("outside torch, and state", memory.non_torch_bytes, outside)
    return tuple(parts)


_PEAK, _OUTSIDE = (
    next(index for index, (_, field, _) in enumerate(_PARTS) if field == wanted)
    for wanted in ("activation_bytes", "non_torch_bytes")
)


_BESIDE_THE_POOL = ("GPU in all", "weights")


def parts_beside_the_pool(log: StartupLog, prediction: VllmPrediction) -> tuple[AccountLine, ...]:
    """The account without a prediction of what follows from a share of the GPU."""
    return tuple(
        part if part.name in _BESIDE_THE_POOL else replace(part, predicted_bytes=None)
        for part in parts_of(log, prediction)
    )


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
    width = within.pool_bytes[1] - within.pool_bytes[0]
    if width and high < seen <= high + within.later_start_bytes * (high - low) / width + rounding:
        return (
            f"The log has {said}, where 9 of 10 first starts like it have {between}: as much as a later start has, "
            "which finds its kernels compiled, all or some of them (--warm-start)."
        )
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
