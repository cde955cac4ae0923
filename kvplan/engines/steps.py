"""Steps of another engine, one by one: what its scheduler wrote of each, and the columns of a row that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvplan.runs.columns import Row
from kvplan.sweeps.worker.metrics import weighted_percentile


@dataclass(frozen=True, slots=True)
class EngineStep:
    """One step as it was scheduled. seconds: how long until its tokens were there; kv_usage: used blocks / blocks."""

    seconds: float
    num_running: int
    num_waiting: int
    kv_usage: float
    num_tokens: int
    num_preempted: int

    @staticmethod
    def of_line(line: str) -> EngineStep:
        """The fields in their order, apart by spaces."""
        seconds, running, waiting, usage, tokens, preempted = line.split()
        return EngineStep(float(seconds), int(running), int(waiting), float(usage), int(tokens), int(preempted))


@dataclass(frozen=True, slots=True)
class StepLog:
    """A file to which a scheduler adds a line for each step; a load's steps begin where it ended before."""

    path: Path

    def end(self) -> int:
        """Its length in bytes now; 0 if there is none yet."""
        return self.path.stat().st_size if self.path.exists() else 0

    def steps_from(self, start: int) -> list[EngineStep]:
        """The whole lines behind ``start``, as ``end`` gave it."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(start)
            whole, _, _ = file.read().decode().rpartition("\n")
        return [EngineStep.of_line(line) for line in whole.splitlines()]


def steps_row(steps: Sequence[EngineStep]) -> Row:
    """What a sweep's columns say of these steps, in the place of what samples saw; nothing of none."""
    if not steps:
        return {}
    usage = np.array([step.kv_usage for step in steps])
    seconds = np.array([step.seconds for step in steps])
    return {
        "num_steps": len(steps),
        "max_running": max(step.num_running for step in steps),
        "max_waiting": max(step.num_waiting for step in steps),
        "num_preemptions": sum(step.num_preempted for step in steps),
        "kv_usage_mean": float(np.average(usage, weights=seconds)),
        "kv_usage_p95": weighted_percentile(usage, seconds, 95),
        "kv_usage_max": float(usage.max()),
    }
