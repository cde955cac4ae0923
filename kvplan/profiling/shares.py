"""Where a step's time goes: phases of the engine's step, and operations of the model's layers within its forward."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from kvplan.profiling.steps import OTHER_PHASE, StepRecording

PHASE_TITLES: Final[Mapping[str, str]] = {
    "schedule": "scheduling",
    "transfer": "block transfers",
    "prepare": "input preparation",
    "forward": "forward",
    "commit": "bookkeeping",
    "sample": "sampling",
    "count": "statistics",
    "wait": "waiting for tokens",
    "process": "output processing",
    OTHER_PHASE: "rest of the step",
}
OPERATION_TITLES: Final[Mapping[str, str]] = {
    "qkv": "QKV product",
    "rope": "rotary positions",
    "write_kv": "writing K and V",
    "attention": "attention",
    "output": "attention's output product",
    "norms": "residuals and norms",
    "up": "MLP up product, activation",
    "down": "MLP down product",
    "mixture": "router and experts",
}
"""The engine's names (``LAYER_OPERATIONS``); what comes before and after the layers is the rest of forward."""

REST_OF_FORWARD: Final = "embedding and head"


@dataclass(frozen=True, slots=True)
class TimeShare:
    """One part of the time. share: of all steps' time, 0 to 1. The medians are of steps with and without prompt tokens;
    None where there was no such step.
    """

    name: str
    title: str
    seconds: float
    share: float
    median_prefill_seconds: float | None
    median_decode_seconds: float | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def phase_shares(recording: StepRecording) -> list[TimeShare]:
    """One share per phase that occurred, in the order of a step; they add up to the steps' time."""
    return [_share(recording, name, PHASE_TITLES[name], column) for name, column in recording.phases().items()]


def operation_shares(recording: StepRecording) -> list[TimeShare]:
    """One share per operation of the layers, largest first, then the rest of forward; [] where they are not told."""
    operations = recording.json["operation_seconds"]
    if not operations:
        return []
    shares = [
        _share(recording, name, OPERATION_TITLES.get(name, name), column)
        for name, column in operations.items()
        if any(column)
    ]
    forward = recording.json["phase_seconds"]["forward"]
    rest = [max(0.0, whole - sum(parts)) for whole, *parts in zip(forward, *operations.values(), strict=True)]
    shares.sort(key=lambda share: -share.seconds)
    return [*shares, _share(recording, "rest", REST_OF_FORWARD, rest)]


def _share(recording: StepRecording, name: str, title: str, column: Sequence[float]) -> TimeShare:
    seconds = sum(column)
    kinds = recording.kinds()
    return TimeShare(
        name=name,
        title=title,
        seconds=seconds,
        share=seconds / recording.step_seconds if recording.step_seconds else 0.0,
        median_prefill_seconds=_median(column, kinds, ("prefill", "mixed")),
        median_decode_seconds=_median(column, kinds, ("decode",)),
    )


def _median(column: Sequence[float], kinds: Sequence[str], wanted: Sequence[str]) -> float | None:
    chosen = [value for value, kind in zip(column, kinds, strict=True) if kind in wanted]
    return statistics.median(chosen) if chosen else None
