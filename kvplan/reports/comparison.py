"""Two runs side by side: the settings that both have, what changed, and what makes them hard to compare."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvplan.errors import KvplanError
from kvplan.reports.selection import Spread
from kvplan.reports.statuses import STATUS_ORDER
from kvplan.reports.wording import cell
from kvplan.runs.reader import Run, Trial

COMPARISON_SCHEMA: Final = "kvplan.comparison/1"
COMPARED_COLUMNS: Final = ("output_throughput", "median_ttft_ms", "median_tpot_ms", "kv_usage_max", "num_blocks_total")
_MATCHED_SETTINGS: Final = (
    "gpu_memory_utilization",
    "max_num_seqs",
    "block_size",
    "max_model_len",
    "max_num_batched_tokens",
    "kv_cache_dtype",
    "tensor_parallel_size",
)
_CIRCUMSTANCES: Final = (
    "model_id",
    "device_name",
    "device_memory_bytes",
    "dtype",
    "load_format",
    "workload",
    "num_prompts",
    "request_rate",
    "max_concurrency",
    "seed",
    "engine_version",
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A circumstance in which the runs differ; the figures beside each other then say more than the change."""

    name: str
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class Match:
    """One setting that both runs tried. Figures are medians over the repetitions, None where a run has none."""

    settings: Mapping[str, Any]
    statuses: tuple[str, str]
    figures: Mapping[str, tuple[Spread | None, Spread | None]]

    def ratio(self, column: str) -> float | None:
        """Second / first."""
        first, second = self.figures[column]
        return second.median / first.median if first and second and first.median else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """``names`` are the runs' directories; ``num_alone`` settings that only the first or only the second tried."""

    names: tuple[str, str]
    runs: tuple[Run, Run]
    matches: tuple[Match, ...]
    differences: tuple[Difference, ...]
    num_alone: tuple[int, int]

    def ratios(self, column: str) -> list[float]:
        """Second / first of every shared setting in which both have the figure."""
        return [ratio for match in self.matches if (ratio := match.ratio(column)) is not None]

    @property
    def changed_outcomes(self) -> list[Match]:
        """Shared settings that ended differently."""
        return [match for match in self.matches if match.statuses[0] != match.statuses[1]]


def compare_runs(first: Run, second: Run) -> Comparison:
    """Match two runs by their settings. KvplanError when they share none."""
    keys = _matching_columns(first, second)
    groups = _by_settings(first, keys), _by_settings(second, keys)
    shared = [key for key in groups[0] if key in groups[1]]
    if not shared:
        raise KvplanError(
            f"'{first.directory}' and '{second.directory}' have no setting in common.",
            hint="report each by itself, or sweep the second over the first one's values",
        )
    matches = tuple(_match(keys, key, groups[0][key], groups[1][key]) for key in shared)
    alone = len(groups[0]) - len(shared), len(groups[1]) - len(shared)
    return Comparison(_names(first, second), (first, second), matches, _differences(first, second), alone)


def _matching_columns(first: Run, second: Run) -> tuple[str, ...]:
    """All settings but those that never vary within either run: such a one is what the runs are compared for."""
    return tuple(name for name in _MATCHED_SETTINGS if not _is_the_change(first, second, name))


def _is_the_change(first: Run, second: Run, column: str) -> bool:
    values = [{trial.text(column) for trial in run.trials} for run in (first, second)]
    return all(len(found) == 1 for found in values) and values[0] != values[1]


def _by_settings(run: Run, keys: Sequence[str]) -> dict[tuple[str, ...], list[Trial]]:
    groups: dict[tuple[str, ...], list[Trial]] = defaultdict(list)
    for trial in run.trials:
        groups[tuple(trial.text(name) for name in keys)].append(trial)
    return dict(groups)


def _match(keys: Sequence[str], key: tuple[str, ...], first: list[Trial], second: list[Trial]) -> Match:
    return Match(
        settings={name: first[0].row.get(name) for name, text in zip(keys, key, strict=True) if text},
        statuses=(_worst(first), _worst(second)),
        figures={name: (_spread(first, name), _spread(second, name)) for name in COMPARED_COLUMNS},
    )


def _worst(trials: list[Trial]) -> str:
    rank = {name: place for place, name in enumerate(STATUS_ORDER)}
    return max((trial.status for trial in trials), key=lambda name: rank.get(name, len(rank)))


def _spread(trials: list[Trial], column: str) -> Spread | None:
    values = [value for trial in trials if (value := trial.number(column)) is not None]
    return Spread.of(values) if values else None


def _names(first: Run, second: Run) -> tuple[str, str]:
    one, other = first.directory.resolve(), second.directory.resolve()
    if one.name != other.name:
        return one.name, other.name
    return f"{one.parent.name}/{one.name}", f"{other.parent.name}/{other.name}"


def _differences(first: Run, second: Run) -> tuple[Difference, ...]:
    names = [*_CIRCUMSTANCES, *(name for name in _MATCHED_SETTINGS if _is_the_change(first, second, name))]
    found = []
    for name in names:
        unit = "bytes" if name.endswith("_bytes") else ""
        one, other = (_values(run, name, unit) for run in (first, second))
        if one != other:
            found.append(Difference(name, one or "–", other or "–"))
    return tuple(found)


def _values(run: Run, column: str, unit: str) -> str:
    return ", ".join(dict.fromkeys(cell(t.row.get(column), unit) for t in run.trials if t.text(column)))


def verdicts(comparison: Comparison) -> list[str]:
    """What the comparison says, one sentence per figure, median of the ratios with their range."""
    second = comparison.names[1]
    lines = []
    for column, noun in (("output_throughput", "output throughput"), ("median_tpot_ms", "median TPOT"),
                         ("median_ttft_ms", "median TTFT")):  # fmt: skip
        ratios = comparison.ratios(column)
        if ratios:
            middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
            lines.append(
                f"{noun} of {second} is {middle:.2f} times the first one's (median of {len(ratios)} shared settings; "
                f"{low:.2f} to {high:.2f})"
            )
    changed = len(comparison.changed_outcomes)
    lines.append(f"the outcome changed in {changed} of {len(comparison.matches)} shared settings")
    return [line[:1].upper() + line[1:] + "." for line in lines]


def comparison_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One flat row per shared setting: settings, then for each figure both medians and their ratio."""
    rows = []
    for match in comparison.matches:
        row: dict[str, Any] = {**match.settings, "status_first": match.statuses[0], "status_second": match.statuses[1]}
        for name, (first, second) in match.figures.items():
            row[f"{name}_first"] = first.median if first else None
            row[f"{name}_second"] = second.median if second else None
            row[f"{name}_ratio"] = match.ratio(name)
        rows.append(row)
    return rows


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """The whole comparison as JSON of schema ``kvplan.comparison/1``."""
    return {
        "schema": COMPARISON_SCHEMA,
        "first": comparison.names[0],
        "second": comparison.names[1],
        "verdicts": verdicts(comparison),
        "differences": [
            {"name": entry.name, "first": entry.first, "second": entry.second} for entry in comparison.differences
        ],
        "num_shared_settings": len(comparison.matches),
        "num_settings_only_first": comparison.num_alone[0],
        "num_settings_only_second": comparison.num_alone[1],
        "rows": comparison_rows(comparison),
        "notes": [
            f"{name}: {note}" for name, run in zip(comparison.names, comparison.runs, strict=True) for note in run.notes
        ],
    }
