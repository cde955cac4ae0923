"""The lines of an account: where the log's memory went, beside what is predicted of each part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvplan.estimate.vllm.prediction import VllmPrediction
from kvplan.explaining.startup_log import StartupLog


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
