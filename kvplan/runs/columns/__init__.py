"""The columns of a sweep's rows: one declaration of every column's name, type, unit, group and description.

``Row`` has them all. results.csv, the manifest, the documentation and the reports take names, units and descriptions
from it, and mypy checks the keys and types of every row against it. A stored row has all columns, with None where a
figure does not exist; a part of a row, such as the one a worker measures, has some of them.

    about        what stands beside a type: description, unit
    identity     which trial it is
    asked        the engine's settings; the workload
    outcome      how it ended; the service level; speculation; the time it took
    speed        throughput; latencies
    over_http    client and server of a load over HTTP
    memory       the KV cache's blocks; weights, activations and peaks
    prediction   what was expected
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, get_type_hints

from kvplan.runs.columns.asked import SettingColumns, WorkloadColumns
from kvplan.runs.columns.identity import IdentityColumns
from kvplan.runs.columns.memory import KvColumns, MemoryColumns
from kvplan.runs.columns.outcome import SloColumns, SpeculationColumns, StatusColumns, TimeColumns
from kvplan.runs.columns.over_http import ClientColumns, ServerColumns
from kvplan.runs.columns.prediction import PredictionColumns
from kvplan.runs.columns.speed import LatencyColumns, ThroughputColumns


class Row(
    IdentityColumns,
    SettingColumns,
    WorkloadColumns,
    StatusColumns,
    ThroughputColumns,
    LatencyColumns,
    ClientColumns,
    ServerColumns,
    KvColumns,
    MemoryColumns,
    PredictionColumns,
    SloColumns,
    SpeculationColumns,
    TimeColumns,
    total=False,
):
    """One trial, its columns in this order. A new one is a line more in a group; docs/how-to/add-a-report-column.md."""


_GROUPS: Final[Mapping[str, type]] = {
    "identity": IdentityColumns,
    "settings": SettingColumns,
    "workload": WorkloadColumns,
    "status": StatusColumns,
    "throughput": ThroughputColumns,
    "latency": LatencyColumns,
    "client": ClientColumns,
    "server": ServerColumns,
    "kv": KvColumns,
    "memory": MemoryColumns,
    "prediction": PredictionColumns,
    "slo": SloColumns,
    "speculation": SpeculationColumns,
    "time": TimeColumns,
}
"""Each heading that reports list columns under, and the class whose columns stand there."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name (vLLM's where vLLM has one), unit, group and description."""

    name: str
    unit: str
    group: str
    description: str


def _columns() -> tuple[Column, ...]:
    groups = {name: group for group, kind in _GROUPS.items() for name in kind.__annotations__}
    columns = []
    for name, hint in get_type_hints(Row, include_extras=True).items():
        (about,) = hint.__metadata__
        columns.append(Column(name, about.unit, groups[name], about.description))
    return tuple(columns)


COLUMNS: Final[tuple[Column, ...]] = _columns()
COLUMN_NAMES: Final[tuple[str, ...]] = tuple(column.name for column in COLUMNS)


FIRST_COLUMNS: Final[tuple[str, ...]] = (
    "trial_number", "status", "model_id", "engine", "device_name", "max_num_seqs", "max_model_len",
    "gpu_memory_utilization", "block_size", "max_concurrency", "request_rate", "output_throughput",
    "pred_output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "num_blocks_total",
    "num_blocks_predicted", "kv_usage_max",
)  # fmt: skip
"""What people look at first: the first columns of a table."""


def table_columns(rows: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    """Return the columns of a table of these rows: first those looked at first, and none that is always empty."""
    filled = {name for row in rows for name, value in row.items() if value is not None}
    ordered = (*FIRST_COLUMNS, *(name for name in COLUMN_NAMES if name not in FIRST_COLUMNS))
    return tuple(name for name in ordered if name in filled)


def columns_as_json() -> list[dict[str, str]]:
    """The list for the manifest."""
    return [
        {"name": column.name, "unit": column.unit, "group": column.group, "description": column.description}
        for column in COLUMNS
    ]
