"""What a step and an engine report of queues, blocks and the prefix cache. No torch."""

from __future__ import annotations

from typing import Any

from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.scheduling.scheduler import Scheduler


def count_step(scheduler: Scheduler, block_bytes: int, plan: StepPlan) -> dict[str, int]:
    """The counts of StepStats for ``plan``, taken while its sequences still hold their blocks."""
    pool, running = scheduler.pool, scheduler.running
    num_used_blocks, num_unused_slots = pool.num_used_blocks, _num_unused_slots(scheduler) * pool.layout.token_blocks
    return {
        "num_running": len(running),
        "num_waiting": len(scheduler.waiting),
        "num_swapped": len(scheduler.swapped),
        "num_scheduled_tokens": plan.num_tokens,
        "num_used_blocks": num_used_blocks,
        "num_free_blocks": pool.num_free_blocks,
        "num_used_tokens": num_used_blocks * pool.block_size - num_unused_slots,
        "num_running_tokens": running.num_tokens,
        "internal_fragmentation_bytes": num_unused_slots * block_bytes // pool.block_size,
        "num_preemptions": scheduler.num_preemptions,
        "num_swaps": scheduler.num_swaps,
        "recomputed_tokens": scheduler.num_recomputed_tokens,
        "num_blocked_admissions": scheduler.num_blocked_admissions,
    }


def _num_unused_slots(scheduler: Scheduler) -> int:
    """Token slots of logical blocks that hold no KV: for each running sequence, its table minus its computed tokens.

    The unused slots of a last block that siblings share are counted once.
    """
    block_size = scheduler.pool.block_size
    number = scheduler.pool.num_logical_blocks * block_size - scheduler.running.num_tokens
    tails: set[int] = set()
    for sequence in scheduler.running.shared_tails:
        for tail in sequence.table.blocks[-1:]:
            if tail in tails:
                number -= len(sequence.table) * block_size - sequence.num_computed_tokens
            tails.add(tail)
    return number


def scheduler_stats(scheduler: Scheduler) -> dict[str, Any]:
    """KV usage, queues and cache hits now, under the names of vLLM's metrics where it has them."""
    pool, cache = scheduler.pool, scheduler.prefix_cache
    return {
        "kv_cache_usage_perc": pool.num_used_blocks / pool.num_blocks,
        "num_blocks": pool.num_blocks,
        "num_free_blocks": pool.num_free_blocks,
        "num_used_blocks": pool.num_used_blocks,
        "block_size": pool.block_size,
        "num_requests_running": len(scheduler.running),
        "num_requests_waiting": len(scheduler.waiting),
        "num_requests_swapped": len(scheduler.swapped),
        "num_preemptions": scheduler.num_preemptions,
        "num_swaps": scheduler.num_swaps,
        "recomputed_tokens": scheduler.num_recomputed_tokens,
        "num_cached_tokens": cache.num_hit_tokens,
        "num_cached_blocks": pool.num_cached_blocks,
        "prefix_cache_queries": cache.num_queried_tokens,
        "prefix_cache_hits": cache.num_hit_tokens,
    }
