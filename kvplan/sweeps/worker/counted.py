"""Trials of an engine that computes nothing: steps instead of seconds, and rows without speeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from kvplan.runs.columns import COLUMNS, Row
from kvplan.sweeps.worker.load_generator import ServingEngine, ServingStats, StepOutput

_COUNTS: Final = frozenset(
    {"completed", "failed", "total_input_tokens", "total_output_tokens", "max_concurrent_requests"}
)
"""What the group of throughputs counts, without any time."""


class StepCounter:
    """``engine`` with a clock beside it that says how many steps it has run."""

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine
        self._num_steps = 0

    def read(self) -> float:
        """Steps so far."""
        return float(self._num_steps)

    @property
    def stats(self) -> ServingStats:
        return self._engine.stats

    def add_request(
        self, request_id: str, prompt_token_ids: list[int], params: Any, *, lora_request: Any = None
    ) -> object:
        return self._engine.add_request(request_id, prompt_token_ids, params, lora_request=lora_request)

    def step(self) -> Sequence[StepOutput]:
        self._num_steps += 1
        return self._engine.step()

    def has_unfinished_requests(self) -> bool:
        return self._engine.has_unfinished_requests()


def without_speeds(row: Row) -> Row:
    """``row`` without throughputs and latencies: columns that are empty, not 0."""
    timed = {column.name for column in COLUMNS if column.group in ("throughput", "latency")} - _COUNTS
    return cast(Row, {name: value for name, value in row.items() if name not in timed})
