"""The messages between a profile and its worker: a sweep's, with an order and a result of their own.

parent -> worker   ProfileOrder         run one setting and record it
worker -> parent   Hello, ReserveMessage, StageMessage, ProgressMessage, as in a sweep
                   ProfileResult        it has ended
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from kvplan.profiling.steps import RecordingJson
from kvplan.runs.columns import Row
from kvplan.sweeps.worker.protocol import Hello, ProgressMessage, ReserveMessage, StageMessage, TrialOrder


class ProfileResult(TypedDict):
    """row: the columns that the worker measured. recording: None if the setting was not served."""

    type: Literal["result"]
    row: Row
    recording: RecordingJson | None


Message = Hello | ReserveMessage | StageMessage | ProgressMessage | ProfileResult


@dataclass(frozen=True, slots=True)
class ProfileOrder:
    """trial: as in a sweep. allocations_path: where torch's allocator history is written, None to keep none."""

    trial: TrialOrder
    allocations_path: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {"type": "profile", "trial": self.trial.as_json(), "allocations_path": self.allocations_path}

    @staticmethod
    def from_json(message: dict[str, Any]) -> ProfileOrder:
        return ProfileOrder(TrialOrder.from_json(message["trial"]), message["allocations_path"])
