"""What a step saw: the numbers that a server's metrics and a sweep's rows are made of. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StepStats:
    """One step. Block and token counts are taken when the step's tokens are in, before finished sequences leave.

    num_used_tokens: token slots of used blocks that hold KV; the other slots are internal fragmentation.
    num_swaps: those of the num_preemptions that went to host memory.
    longest_stall_seconds: the longest that a sequence which got a token in this step had waited since its last one;
    sequences that were preempted meanwhile do not count.
    num_preemptions, num_swaps, recomputed_tokens, num_blocked_admissions: since the pool was made.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_swapped: int = 0
    num_scheduled_tokens: int = 0
    num_used_blocks: int = 0
    num_free_blocks: int = 0
    num_used_tokens: int = 0
    num_running_tokens: int = 0
    internal_fragmentation_bytes: int = 0
    num_preemptions: int = 0
    num_swaps: int = 0
    recomputed_tokens: int = 0
    num_blocked_admissions: int = 0
    step_seconds: float = 0.0
    longest_stall_seconds: float = 0.0

    @property
    def kv_cache_usage_perc(self) -> float:
        """Share of the pool's blocks in use, 0 to 1 (vLLM's name for it)."""
        total = self.num_used_blocks + self.num_free_blocks
        return self.num_used_blocks / total if total else 0.0
