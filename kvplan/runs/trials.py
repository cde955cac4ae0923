"""A trial: one setting of the engine, run once with the sweep's workload or under a load of its own."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypedDict

from kvplan.errors import KvplanError
from kvplan.runs.shape import ShapeError, check_shape
from kvplan.settings import KNOBS, LoraSlots, ServingSettings, own_group_size


class LoadJson(TypedDict, total=False):
    """A Load as JSON: only what is set. An unlimited rate is the word ``inf``, because JSON has no such number."""

    request_rate: float | str
    max_concurrency: int


class _TrialJson(TypedDict):
    number: int
    settings: dict[str, Any]
    run_number: int
    planes: list[str]


class TrialJson(_TrialJson, total=False):
    """A Trial as JSON, in the manifest."""

    load: LoadJson


SETTING_NAMES: Final[tuple[str, ...]] = tuple(name for name, knob in KNOBS.items() if knob.is_axis)
"""The settings that a sweep can vary, in the order of axes, columns and JSON."""

NEEDED_SETTINGS: Final = (
    "gpu_memory_utilization",
    "max_num_seqs",
    "block_size",
    "max_model_len",
    "max_num_batched_tokens",
)
"""The settings that every trial has; 0 in those of a server that runs already and does not tell it."""

# In the JSON, and so in the id, of every trial. A setting that becomes an axis later is written only if it is set, so
# that equal trials keep their ids.
_ALWAYS_WRITTEN: Final = frozenset((*NEEDED_SETTINGS, "dtype", "kv_cache_dtype"))

LOADED_FOR: Final = (
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "group_size",
    "max_loras",
    "max_lora_rank",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "enable_expert_parallel",
)
"""The settings that a worker's weights are loaded for."""

NAMED_SETTINGS: Final = (*NEEDED_SETTINGS, *LOADED_FOR, "num_speculative_tokens")
"""The settings of kvplan's own engine that reports tell trials apart by."""


class LoadKey(NamedTuple):
    """What weights are loaded for. group_size, num_adapters, adapter_rank: 0 where there are none."""

    dtype: str
    kv_cache_dtype: str
    quantization: str = "auto"
    group_size: int = 0
    num_adapters: int = 0
    adapter_rank: int = 0
    num_ranks: int = 1
    num_stages: int = 1
    whole_experts: bool = False


@dataclass(frozen=True, slots=True)
class TrialSettings(ServingSettings):
    """The settings of one trial: those that depend on the sweep are decided, the others are the engine's."""

    gpu_memory_utilization: float
    max_num_seqs: int
    block_size: int
    max_model_len: int
    max_num_batched_tokens: int

    @property
    def load_key(self) -> LoadKey:
        """What the engine and its weights are loaded for; trials with equal keys share one worker."""
        slots = self.lora_slots or LoraSlots(0, 0)
        weights = (self.dtype, self.kv_cache_dtype, self.quantization, self.group_size or 0)
        ranks = (self.tensor_parallel_size, self.pipeline_parallel_size, self.enable_expert_parallel)
        return LoadKey(*weights, slots.number, slots.rank, *ranks)

    def with_changes(self, **changes: Any) -> TrialSettings:
        """These settings with ``changes``; what has no meaning with them is as if it had not been given."""
        changed = replace(self, **changes)
        return replace(
            changed,
            group_size=own_group_size(changed.quantization, changed.group_size),
            max_lora_rank=None if changed.max_loras == 0 else changed.max_lora_rank,
        )

    def engine_arguments(self) -> dict[str, Any]:
        """What kvplan's engine takes of them, by its names."""
        slots = self.lora_slots
        values = {name: value for name, value in self.as_json().items() if name not in ("max_loras", "max_lora_rank")}
        if slots is None:
            return values
        return values | {"enable_lora": True, "max_loras": slots.number, "max_lora_rank": slots.rank}

    def as_json(self) -> dict[str, Any]:
        """The axes by name."""
        values = {name: getattr(self, name) for name in SETTING_NAMES}
        return {
            name: value for name, value in values.items() if name in _ALWAYS_WRITTEN or value != KNOBS[name].default
        }

    @property
    def is_known(self) -> bool:
        """Whether all are known that it takes to serve with them elsewhere."""
        return all(getattr(self, name) for name in NEEDED_SETTINGS)

    def known_values(self) -> dict[str, Any]:
        """The axes by name, but those that are not known."""
        return {name: value for name, value in self.as_json().items() if value or name not in NEEDED_SETTINGS}

    @staticmethod
    def of_known(values: Mapping[str, Any]) -> TrialSettings:
        """From ``known_values``."""
        return TrialSettings.from_json({**dict.fromkeys(NEEDED_SETTINGS, 0), **values})

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> TrialSettings:
        """KvplanError for settings that are none."""
        try:
            check_shape(record, TrialSettings, "settings")
        except ShapeError as error:
            raise KvplanError(f"A trial's settings cannot be read: {error}.") from error
        return TrialSettings(**record)


@dataclass(frozen=True, slots=True)
class Load:
    """How a trial's requests arrive where that differs from the rest of the sweep; None: as in the sweep.

    request_rate: arrivals per second, math.inf for all at once. max_concurrency: maximum number of requests in flight.
    """

    request_rate: float | None = None
    max_concurrency: int | None = None

    def as_json(self) -> LoadJson:
        record: LoadJson = {}
        if self.request_rate is not None:
            record["request_rate"] = rate_as_json(self.request_rate)
        if self.max_concurrency is not None:
            record["max_concurrency"] = self.max_concurrency
        return record

    @staticmethod
    def from_json(record: LoadJson) -> Load:
        rate = record.get("request_rate")
        return Load(None if rate is None else float(rate), record.get("max_concurrency"))


SWEEP_LOAD = Load()
LOAD_NAMES: Final = ("request_rate", "max_concurrency")
"""The columns that hold a row's load."""


def rate_as_json(rate: float) -> float | str:
    """A request rate as a cell or a JSON value: JSON has no infinity."""
    return "inf" if math.isinf(rate) else rate


@dataclass(frozen=True, slots=True)
class Trial:
    """``number`` is the position in the sweep, from 1; ``planes`` are the parts of the design it belongs to.

    rerun_of, rerun_reason: the run number of the outlier that this run repeats, and why that run is one.
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
        key: list[object] = [self.settings.as_json(), self.run_number]
        if self.load != SWEEP_LOAD:
            key.append(self.load.as_json())
        return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]

    def as_json(self) -> TrialJson:
        record: TrialJson = {
            "number": self.number,
            "settings": self.settings.as_json(),
            "run_number": self.run_number,
            "planes": list(self.planes),
        }
        if self.load != SWEEP_LOAD:
            record["load"] = self.load.as_json()
        return record

    @staticmethod
    def from_json(record: TrialJson) -> Trial:
        """KvplanError for a record that is none."""
        if missing := {"number", "settings", "run_number", "planes"} - record.keys():
            raise KvplanError(f"A trial of the plan lacks {min(missing)}.")
        return Trial(
            number=record["number"],
            settings=TrialSettings.from_json(record["settings"]),
            run_number=record["run_number"],
            planes=tuple(record["planes"]),
            load=Load.from_json(record.get("load", {})),
        )
