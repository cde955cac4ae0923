"""Loaded by vLLM (``--scheduler-cls kvplan_limits.LimitedScheduler``): takes smaller limits while it runs, tells steps.

The scheduler reads ``max_num_active_reqs`` and ``max_num_scheduled_tokens`` in every step
(vllm/v1/core/sched/scheduler.py, read in 0.32.0), so lowering them between two loads does what a start with a smaller
``max_num_seqs`` or ``max_num_batched_tokens`` would do to the batches. Memory stays as it was carved at the start.

A line for each step goes to a file as soon as the step's tokens are there: its seconds, sequences running and waiting,
the share of the KV cache in use while it ran, tokens computed, sequences preempted. The metrics page shows what it
happens to show when it is asked; a short load is over between two readings.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

FILE_VARIABLE = "KVPLAN_LIMITS_FILE"
STEPS_VARIABLE = "KVPLAN_STEPS_FILE"


class LimitedScheduler(Scheduler):
    """vLLM's own, with the limits that a file says, from the step after the file has changed."""

    max_num_active_reqs: int
    max_num_scheduled_tokens: int

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._kvplan_started = (self.max_num_active_reqs, self.max_num_scheduled_tokens)
        self._kvplan_seen = 0
        self._kvplan_step: tuple[float, str] | None = None
        self._kvplan_steps = open(os.environ[STEPS_VARIABLE], "a", buffering=1, encoding="ascii")  # noqa: SIM115

    def schedule(self, *arguments: Any, **named: Any) -> Any:
        """One step, after a look at the file."""
        self._kvplan_look()
        begun = time.perf_counter()
        output = super().schedule(*arguments, **named)
        running, waiting = self.get_request_counts()
        preempted = len(output.preempted_req_ids or ())
        usage, tokens = self.kv_cache_manager.usage, output.total_num_scheduled_tokens
        self._kvplan_step = (begun, f"{running} {waiting} {usage:.6f} {tokens} {preempted}\n") if tokens else None
        return output

    def update_from_output(self, *arguments: Any, **named: Any) -> Any:
        """Its tokens are there: the step is told."""
        if self._kvplan_step is not None:
            begun, line = self._kvplan_step
            self._kvplan_steps.write(f"{time.perf_counter() - begun:.6f} {line}")
            self._kvplan_step = None
        return super().update_from_output(*arguments, **named)

    def _kvplan_look(self) -> None:
        """A file that is not there, or half written, changes nothing."""
        try:
            changed = os.stat(os.environ[FILE_VARIABLE]).st_mtime_ns
        except OSError:
            return
        if changed != self._kvplan_seen:
            self._kvplan_take(changed)

    def _kvplan_take(self, changed: int) -> None:
        with open(os.environ[FILE_VARIABLE], encoding="utf-8") as file:
            limits = json.load(file)
        seats, tokens = self._kvplan_started
        self.max_num_active_reqs = min(seats, limits["max_num_seqs"])
        self.max_num_scheduled_tokens = min(tokens, limits["max_num_batched_tokens"])
        self._kvplan_seen = changed
