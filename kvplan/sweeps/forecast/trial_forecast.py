"""How a trial will go, from lengths alone: continuous batching simulated without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvplan.estimate.kv_groups import KvGroup
from kvplan.estimate.speed.simulation.batching import simulate_requests
from kvplan.estimate.speed.simulation.interface import UNIFORM, BatchLimits, Simulation, StepClock
from kvplan.runs.trials import TrialSettings
from kvplan.workload.requests import RequestSpec, adapter_of


def forecast_trial(
    requests: Sequence[RequestSpec],
    settings: TrialSettings,
    *,
    num_blocks: int,
    cost: StepClock,
    groups: tuple[KvGroup, ...] = UNIFORM,
    max_concurrency: int | None = None,
) -> Simulation:
    """Simulate the requests (already clipped to max_model_len) on a pool of ``num_blocks`` blocks.

    The pool must hold one sequence of max_model_len tokens, as the engine requires; then every request completes.
    """
    limits = BatchLimits(
        settings.max_num_seqs,
        settings.max_num_batched_tokens,
        settings.block_size,
        num_blocks,
        groups,
        caches_prefixes=settings.enable_prefix_caching is not False,
    )
    return simulate_requests(_told_apart(requests, settings), limits, cost, max_concurrency=max_concurrency)


def _told_apart(requests: Sequence[RequestSpec], settings: TrialSettings) -> Sequence[RequestSpec]:
    """``requests`` with a prefix of its own for each adapter: KV of one is never another's."""
    number = 0 if settings.lora_slots is None else settings.lora_slots.number
    if number < 2:
        return requests
    return [
        replace(request, prefix_index=request.prefix_index * number + (adapter_of(request.index, number) or 0))
        for request in requests
    ]
