"""Counts and times of a step: the source of a server's metrics and of a sweep's rows. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StepStats:
    """One step. Blocks and tokens are counted once the step has been started, before finished sequences leave.

    num_used_tokens: token slots of used blocks that hold KV; the other slots are internal fragmentation.
    num_swaps: preemptions, among num_preemptions, that swapped to host memory.
    step_seconds: until its tokens were there, since it was started or, if that was later, those of the step before were
    there: so the seconds of steps that run one behind the other add up. is_followed: the next one was started before.
    longest_stall_seconds: of the sequences that got a token in this step, the longest time since the last one; those
    preempted in between do not count.
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
    is_followed: bool = False
