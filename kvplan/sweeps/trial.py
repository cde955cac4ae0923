"""A trial: one setting of the engine, run once with the sweep's workload."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """The engine arguments of one trial, under vLLM's names."""

    gpu_memory_utilization: float
    max_num_seqs: int
    block_size: int
    max_model_len: int
    max_num_batched_tokens: int = 2048
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"

    @property
    def load_key(self) -> tuple[str, str]:
        """What the weights and the engine are loaded for; trials with equal keys share one worker."""
        return (self.dtype, self.kv_cache_dtype)

    def with_changes(self, **changes: Any) -> TrialSettings:
        return replace(self, **changes)

    def as_text(self) -> str:
        """One line for people: ``utilization 0.9, 16 sequences, block 16, context 1,024``."""
        return (
            f"utilization {self.gpu_memory_utilization:g}, {self.max_num_seqs} sequences, "
            f"block {self.block_size}, context {self.max_model_len:,}"
        )


SETTING_NAMES: tuple[str, ...] = tuple(field.name for field in fields(TrialSettings))


@dataclass(frozen=True, slots=True)
class Trial:
    """``number`` is the place in the sweep, from 1; ``planes`` are the views of the design it belongs to."""

    number: int
    settings: TrialSettings
    run_number: int = 1
    planes: tuple[str, ...] = ("grid",)

    @property
    def trial_id(self) -> str:
        """Equal settings and run numbers have equal ids, in every sweep."""
        key = json.dumps([asdict(self.settings), self.run_number], sort_keys=True)
        return hashlib.sha256(key.encode()).hexdigest()[:12]

    def as_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "settings": asdict(self.settings),
            "run_number": self.run_number,
            "planes": list(self.planes),
        }

    @staticmethod
    def from_json(record: dict[str, Any]) -> Trial:
        return Trial(
            number=record["number"],
            settings=TrialSettings(**record["settings"]),
            run_number=record["run_number"],
            planes=tuple(record["planes"]),
        )
