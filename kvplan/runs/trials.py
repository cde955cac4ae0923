"""A trial: one setting of the engine, run once with the sweep's workload or under a load of its own."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
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


@dataclass(frozen=True, slots=True)
class Load:
    """How a trial's requests arrive where that differs from the rest of the sweep; None: as in the sweep.

    request_rate: arrivals per second, math.inf for all at once. max_concurrency: most requests in flight.
    """

    request_rate: float | None = None
    max_concurrency: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Only what is set; a rate without limit is the word ``inf``, because JSON has no such number."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        return {name: "inf" if value == math.inf else value for name, value in values.items()}

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> Load:
        rate = record.get("request_rate")
        return Load(math.inf if rate == "inf" else rate, record.get("max_concurrency"))


SWEEP_LOAD = Load()

SETTING_NAMES: tuple[str, ...] = tuple(field.name for field in fields(TrialSettings))


@dataclass(frozen=True, slots=True)
class Trial:
    """``number`` is the place in the sweep, from 1; ``planes`` are the views of the design it belongs to.

    rerun_of, rerun_reason: the run number of the outlier that this run stands beside, and why it is one.
    """

    number: int
    settings: TrialSettings
    run_number: int = 1
    planes: tuple[str, ...] = ("grid",)
    load: Load = SWEEP_LOAD
    rerun_of: int | None = None
    rerun_reason: str | None = None

    @property
    def trial_id(self) -> str:
        """Equal settings, loads and run numbers have equal ids, in every sweep."""
        key: list[Any] = [asdict(self.settings), self.run_number]
        if self.load != SWEEP_LOAD:
            key.append(self.load.as_json())
        return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]

    def with_changes(self, **changes: Any) -> Trial:
        return replace(self, **changes)

    def as_json(self) -> dict[str, Any]:
        record = {
            "number": self.number,
            "settings": asdict(self.settings),
            "run_number": self.run_number,
            "planes": list(self.planes),
        }
        return record if self.load == SWEEP_LOAD else record | {"load": self.load.as_json()}

    @staticmethod
    def from_json(record: dict[str, Any]) -> Trial:
        return Trial(
            number=record["number"],
            settings=TrialSettings(**record["settings"]),
            run_number=record["run_number"],
            planes=tuple(record["planes"]),
            load=Load.from_json(record.get("load", {})),
        )
