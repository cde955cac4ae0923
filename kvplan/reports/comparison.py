"""Two runs side by side: the settings that both have, what changed, and what makes them hard to compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from kvplan.errors import KvplanError
from kvplan.reports.selection import is_busy
from kvplan.reports.wording import cell, of_both
from kvplan.runs.statuses import worst_of
from kvplan.runs.storage.reader import WHOLE_COLUMNS, Run
from kvplan.runs.trials import NAMED_SETTINGS

# How far apart two runs of one setting may be: at least, where none was repeated, and where the machine was busy.
LEAST_SPREAD: Final = 0.03
QUIET_SPREAD: Final = 0.10
BUSY_SPREAD: Final = 0.50
_MUCH_SHORTER: Final = 0.5

COMPARISON_SCHEMA: Final = "kvplan.comparison/1"
COMPARED_COLUMNS: Final = ("output_throughput", "median_ttft_ms", "median_tpot_ms", "kv_usage_max", "num_blocks_total")
MATCHED_SETTINGS: Final = (*NAMED_SETTINGS, "request_rate", "max_concurrency")
CIRCUMSTANCES: Final = (
    "model_id",
    "device_name",
    "device_memory_bytes",
    "kernels",
    "num_threads",
    "load_format",
    "model_impl",
    "activation_quantization",
    "workload",
    "num_prompts",
    "seed",
    "engine_version",
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A circumstance in which the runs differ, so that not every difference in the figures comes from the change."""

    name: str
    first: str
    second: str


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """``names`` are the runs' directories, ``num_alone`` the settings that only the first or only the second tried.

    settings: names of the settings that the runs are matched by. matches: one row per setting that both tried; its
    columns are the settings, status_first and status_second (the worst of the repetitions), and for each of
    COMPARED_COLUMNS the medians X_first and X_second, X_ratio (second / first), and X_min, X_max and X_count of either
    side (X_min_first, ...). NaN where a run has no such figure.
    """

    names: tuple[str, str]
    runs: tuple[Run, Run]
    settings: tuple[str, ...]
    matches: pd.DataFrame
    differences: tuple[Difference, ...]
    num_alone: tuple[int, int]

    def ratios(self, column: str) -> pd.Series:
        """Second / first of every setting in which both have the figure."""
        return self.matches[f"{column}_ratio"].dropna()

    @property
    def changed_outcomes(self) -> pd.DataFrame:
        """The matches that ended differently."""
        return self.matches[self.matches["status_first"] != self.matches["status_second"]]

    def table(self) -> pd.DataFrame:
        """The matches as they are exported: settings, statuses, then both medians and the ratio of each figure."""
        figures = [f"{column}_{part}" for column in COMPARED_COLUMNS for part in ("first", "second", "ratio")]
        return self.matches[[*self.settings, "status_first", "status_second", *figures]]

    def records(self) -> list[dict[str, object]]:
        """The rows of ``table``, None for a missing figure."""
        table = self.table().astype(object)
        return table.where(table.notna(), None).to_dict("records")


def compare_runs(first: Run, second: Run) -> Comparison:
    """Match two runs by their settings. KvplanError when they share none."""
    keys = [name for name in MATCHED_SETTINGS if not _is_the_change(first, second, name)]
    one, other = _by_settings(first.frame, keys), _by_settings(second.frame, keys)
    matches = one.merge(other, on=keys, suffixes=("_first", "_second"))
    if matches.empty:
        raise KvplanError(
            f"'{first.directory}' and '{second.directory}' have no setting in common.",
            hint="report each by itself, or sweep the second over the first one's values",
        )
    for name in COMPARED_COLUMNS:
        # A ratio to zero says nothing.
        matches[f"{name}_ratio"] = matches[f"{name}_second"] / matches[f"{name}_first"].where(lambda value: value != 0)
    names = [*CIRCUMSTANCES, *(name for name in MATCHED_SETTINGS if _is_the_change(first, second, name))]
    both = [(name, values_of(first, name), values_of(second, name)) for name in names]
    return Comparison(
        names=_names(first, second),
        runs=(first, second),
        settings=tuple(
            name for name in keys if not matches[name].isin(["", "inf"]).all() and matches[name].notna().any()
        ),
        matches=_with_whole_numbers(matches, keys),
        differences=tuple(Difference(name, one or "–", other or "–") for name, one, other in both if one != other),
        num_alone=(len(one) - len(matches), len(other) - len(matches)),
    )


def _is_the_change(first: Run, second: Run, column: str) -> bool:
    """True for a setting that never varies within either run but differs between them: what they are compared for."""
    one, other = (run.frame[column].unique() for run in (first, second))
    return len(one) == len(other) == 1 and not pd.Series(one).equals(pd.Series(other))


def _by_settings(trials: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """One row per setting in order of appearance: settings, status, and X, X_min, X_max, X_count of every figure."""
    groups = trials.groupby(list(keys), dropna=False, sort=False)
    found = groups[list(COMPARED_COLUMNS)].agg(["median", "min", "max", "count"])
    found.columns = [name if part == "median" else f"{name}_{part}" for name, part in found.columns]
    return found.assign(status=groups["status"].agg(worst_of)).reset_index()


def _is_exact_whole(value: float) -> bool:
    """Whether a float is a whole number that it holds exactly."""
    return abs(value) <= 2**53 and value % 1 == 0


def _with_whole_numbers(matches: pd.DataFrame, settings: Sequence[str]) -> pd.DataFrame:
    """Counts as integers, unless a median lies between two of them: they are exported without a decimal point."""
    counts = [name for name in (*settings, "num_blocks_total_first", "num_blocks_total_second")
              if name.removesuffix("_first").removesuffix("_second") in WHOLE_COLUMNS]  # fmt: skip
    whole = [name for name in counts if matches[name].dropna().map(_is_exact_whole).all()]
    return matches.astype(dict.fromkeys(whole, "Int64"))


def _names(first: Run, second: Run) -> tuple[str, str]:
    one, other = first.directory.resolve(), second.directory.resolve()
    if one.name != other.name:
        return one.name, other.name
    return f"{one.parent.name}/{one.name}", f"{other.parent.name}/{other.name}"


def values_of(run: Run, column: str) -> str:
    """Each value of the column once, in the order of the trials."""
    unit = "bytes" if column.endswith("_bytes") else ""
    return ", ".join(dict.fromkeys(cell(trial.value(column), unit) for trial in run.trials if trial.text(column)))


def verdicts(comparison: Comparison) -> list[str]:
    """What the comparison says, one sentence per figure: the median of the ratios with their range."""
    first, second = comparison.names
    lines = []
    for column, noun in (("output_throughput", "Output throughput"), ("median_tpot_ms", "Median TPOT"),
                         ("median_ttft_ms", "Median TTFT")):  # fmt: skip
        ratios = comparison.ratios(column)
        if not ratios.empty:
            over = of_both(len(ratios), f"; range {ratios.min():.2f} to {ratios.max():.2f}")
            ratio = float(ratios.median())
            is_much_shorter = column != "output_throughput" and 0 < ratio <= _MUCH_SHORTER
            much = f"{1 / ratio:.3g} times shorter than" if is_much_shorter else f"{ratio:.2f} times"
            lines.append(f"{noun} of {second} is {much} that of {first} ({over}).")
            lines += _within_spread(comparison, column, noun, ratio)
    changed, number = len(comparison.changed_outcomes), len(comparison.matches)
    tried = "the one setting that both tried" if number == 1 else f"{number} settings that both tried"
    of = f"{changed} of " if changed and number > 1 else ""
    return [*lines, f"{'The' if changed else 'No'} outcome changed in {of}{tried}."]


def difference_sentences(comparison: Comparison) -> list[str]:
    """Return the circumstances in which the runs differ: ``block_size differs: 16 in one, 32 in two.``"""
    first, second = comparison.names
    differences = comparison.differences
    if not differences:
        return ["Model, device, workload and engine are the same in both runs."]
    return [f"{entry.name} differs: {entry.first} in {first}, {entry.second} in {second}." for entry in differences]


def _within_spread(comparison: Comparison, column: str, noun: str, ratio: float) -> list[str]:
    """Return that the figure differs no more than runs of one setting do; [] where it differs by more."""
    spread = spread_of_runs(comparison, column)
    if not 1 / (1 + spread) <= ratio <= 1 + spread:
        return []
    return [f"{noun}: that shows no difference, since runs of one setting may be {100 * spread:.0f} % apart."]


def spread_of_runs(comparison: Comparison, column: str) -> float:
    """Return how far apart runs of one setting are: as measured, else what is assumed of a quiet or a busy machine."""
    found = []
    for side in ("first", "second"):
        repeated = comparison.matches[comparison.matches[f"{column}_count_{side}"] > 1]
        found += list(repeated[f"{column}_max_{side}"] / repeated[f"{column}_min_{side}"] - 1)
    if found:
        return max(LEAST_SPREAD, float(pd.Series(found).median()))
    return BUSY_SPREAD if any(is_busy(run) for run in comparison.runs) else QUIET_SPREAD


def comparison_document(comparison: Comparison) -> Mapping[str, object]:
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
        "rows": comparison.records(),
        "notes": [
            f"{name}: {note}" for name, run in zip(comparison.names, comparison.runs, strict=True) for note in run.notes
        ],
    }
