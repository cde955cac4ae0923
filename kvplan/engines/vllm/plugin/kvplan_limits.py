"""Loaded by vLLM (``--scheduler-cls kvplan_limits.LimitedScheduler``): takes smaller limits while it runs.

The scheduler reads ``max_num_active_reqs`` and ``max_num_scheduled_tokens`` in every step
(vllm/v1/core/sched/scheduler.py, read in 0.32.0), so lowering them between two loads does what a start with a smaller
``max_num_seqs`` or ``max_num_batched_tokens`` would do to the batches. Memory stays as it was carved at the start.
"""

from __future__ import annotations

import json
import os
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

FILE_VARIABLE = "KVPLAN_LIMITS_FILE"


class LimitedScheduler(Scheduler):
    """vLLM's own, with the limits that a file says, from the step after the file has changed."""

    max_num_active_reqs: int
    max_num_scheduled_tokens: int

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._kvplan_started = (self.max_num_active_reqs, self.max_num_scheduled_tokens)
        self._kvplan_seen = 0

    def schedule(self, *arguments: Any, **named: Any) -> Any:
        """One step. A file that is not there, or half written, changes nothing."""
        try:
            changed = os.stat(os.environ[FILE_VARIABLE]).st_mtime_ns
        except OSError:
            return super().schedule(*arguments, **named)
        if changed != self._kvplan_seen:
            self._kvplan_take(changed)
        return super().schedule(*arguments, **named)

    def _kvplan_take(self, changed: int) -> None:
        with open(os.environ[FILE_VARIABLE], encoding="utf-8") as file:
            limits = json.load(file)
        seats, tokens = self._kvplan_started
        self.max_num_active_reqs = min(seats, limits["max_num_seqs"])
        self.max_num_scheduled_tokens = min(tokens, limits["max_num_batched_tokens"])
        self._kvplan_seen = changed
