"""Several runs side by side, of different engines or not: the settings that they share, and what each did there.

Runs are matched by what any of them varied. A setting that no run varied is a circumstance, however different it is:
vLLM's block of 128 tokens on a CPU and llama.cpp's cells of one are compared at the same load and context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import pandas as pd

from kvplan.errors import KvplanError
from kvplan.reports.comparison import CIRCUMSTANCES, MATCHED_SETTINGS, values_of
from kvplan.reports.fleet import DeviceFigures, device_of, fleet_of, fleet_sentences, is_fleet
from kvplan.reports.wording import of_both, plural
from kvplan.runs.statuses import MEASURED_STATUSES, worst_of
from kvplan.runs.storage.reader import Run

SIDE_BY_SIDE_SCHEMA: Final = "kvplan.side_by_side/1"
FIGURES: Final = (
    "output_throughput",
    "median_ttft_ms",
    "median_tpot_ms",
    "max_running",
    "num_preemptions",
    "kv_cache_tokens",
    "kv_cache_tokens_predicted",
)
_SMALL_RATIO: Final = 0.1
_KEYS: Final = (*MATCHED_SETTINGS, "kv_cache_memory_bytes")


@dataclass(frozen=True, slots=True)
class Side:
    """One run, and what it is called: its engine and version, or its directory where two are of the same."""

    label: str
    run: Run


@dataclass(frozen=True, slots=True)
class Circumstance:
    """Something in which the runs differ beside what they were matched by; one value for each run."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SideBySide:
    """settings: what the runs are matched by. table: one row for each setting that at least two runs tried; columns:
    the settings, and for the run at place i ``status_i`` and ``X_i``, the median of each of FIGURES. NaN: no figure.

    num_alone: for each run, its settings that no other tried. devices: the figures of each run's device, where they
    are of several kinds.
    """

    sides: tuple[Side, ...]
    settings: tuple[str, ...]
    table: pd.DataFrame
    circumstances: tuple[Circumstance, ...]
    num_alone: tuple[int, ...]
    devices: tuple[DeviceFigures, ...] = ()

    @property
    def label_head(self) -> str:
        """What the labels name, as the head of their column."""
        return "device" if self.devices else "engine"

    @property
    def shown_figures(self) -> tuple[str, ...]:
        """The ones of FIGURES that some run has somewhere."""
        places = range(len(self.sides))
        return tuple(name for name in FIGURES if any(self.table[f"{name}_{place}"].notna().any() for place in places))

    def ratios(self, place: int, column: str = "output_throughput") -> pd.Series:
        """The run at ``place`` over the first one, wherever both were served."""
        first = self.table[f"{column}_0"]
        return (self.table[f"{column}_{place}"] / first.where(first > 0)).dropna()

    def records(self) -> list[dict[str, Any]]:
        """One entry per row of the table: the settings, and under each run's label its status and figures."""
        return [
            {name: _plain(row[name]) for name in self.settings}
            | {
                side.label: {name: _plain(row[f"{name}_{place}"]) for name in ("status", *FIGURES)}
                for place, side in enumerate(self.sides)
            }
            for row in self.table.to_dict("records")
        ]


def set_side_by_side(runs: Sequence[Run], prices: Mapping[str, float] = MappingProxyType({})) -> SideBySide:
    """Match the runs. KvplanError when no setting was tried by two of them, unless they are of several devices.

    prices: of an hour of a device in US dollars, by its name.
    """
    keys = [name for name in _KEYS if any(_num_values(run, name) > 1 for run in runs)]
    tables = [_figures_by(run, keys, place) for place, run in enumerate(runs)]
    whole = tables[0]
    for table in tables[1:]:
        whole = whole.merge(table, on=[*keys, "_"], how="outer")
    statuses = whole[[f"status_{place}" for place in range(len(runs))]]
    is_shared = statuses.notna().sum(axis=1) > 1
    has_devices = is_fleet(runs)
    if not is_shared.any() and not has_devices:
        raise KvplanError(
            "No setting was tried in two of these runs.",
            hint="report each by itself, or sweep one over the values of another",
        )
    alone = statuses[~is_shared].notna().sum()
    labels = _labels(runs, by_device=has_devices)
    names = [name for name in (*CIRCUMSTANCES, *_KEYS) if name not in keys]
    found = [Circumstance(name, tuple(values_of(run, name) or "–" for run in runs)) for name in names]
    return SideBySide(
        sides=tuple(Side(label, run) for label, run in zip(labels, runs, strict=True)),
        settings=tuple(keys),
        table=whole[is_shared].sort_values(keys).reset_index(drop=True) if keys else whole,
        circumstances=tuple(each for each in found if len(set(each.values)) > 1),
        num_alone=tuple(int(count) for count in alone),
        devices=fleet_of(runs, labels, prices) if has_devices else (),
    )


def _num_values(run: Run, column: str) -> int:
    return int(run.frame[column].nunique(dropna=False)) if column in run.frame else 0


def _figures_by(run: Run, keys: Sequence[str], place: int) -> pd.DataFrame:
    """One row per setting: medians of the figures, and the worst status of the repetitions. ``_`` is 0 everywhere."""
    frame = run.frame.reindex(columns=[*keys, "status", *FIGURES]).assign(_=0)
    groups = frame.groupby([*keys, "_"], dropna=False, sort=False)
    found = groups[list(FIGURES)].median().assign(status=groups["status"].agg(worst_of))
    return found.add_suffix(f"_{place}").reset_index()


def _labels(runs: Sequence[Run], *, by_device: bool) -> tuple[str, ...]:
    """Name runs by device where these differ, and engine where that does too; by directory where nothing else does."""
    named = [" ".join(filter(None, (engine_of(run), run.first("engine_version")))) for run in runs]
    if by_device:
        several = len(set(named)) > 1
        named = [
            device_of(run.trials[0]) + (f", {name}" if several else "") for run, name in zip(runs, named, strict=True)
        ]
    if len(set(named)) == len(named):
        return tuple(named)
    directories = [run.directory.resolve() for run in runs]
    short = [path.name for path in directories]
    if len(set(short)) < len(short):
        short = [f"{path.parent.name}/{path.name}" for path in directories]
    bases = named if by_device else [engine_of(run) for run in runs]
    return tuple(f"{base} ({name})" for base, name in zip(bases, short, strict=True))


def engine_of(run: Run) -> str:
    """The engine that served a run: kvplan's own where its rows do not say."""
    return run.first("engine") or "kvplan"


def side_sentences(compared: SideBySide) -> list[str]:
    """What the table says: speeds against the first run, outcomes, and how the predicted tokens fared."""
    lines = fleet_sentences(compared.devices) if compared.devices else []
    lines += [line for place in range(1, len(compared.sides)) for line in _speed_sentences(compared, place)]
    lines += [line for place in range(len(compared.sides)) for line in _token_sentence(compared, place)]
    return [*lines, *_outcome_sentences(compared)]


def _speed_sentences(compared: SideBySide, place: int) -> list[str]:
    first, other = compared.sides[0].label, compared.sides[place].label
    lines = []
    for column, noun in (("output_throughput", "Output throughput"), ("median_tpot_ms", "Median TPOT")):
        ratios = compared.ratios(place, column)
        if ratios.empty:
            continue
        over = of_both(len(ratios), f"; range {_times(ratios.min())} to {_times(ratios.max())}")
        lines.append(f"{noun} of {other} is {_times(ratios.median())} times that of {first} ({over}).")
    return lines


def _times(ratio: float) -> str:
    """``0.25``, and ``1/40`` where two places would leave one digit."""
    return f"{ratio:.2f}" if ratio >= _SMALL_RATIO else f"1/{1 / ratio:.0f}"


def _token_sentence(compared: SideBySide, place: int) -> list[str]:
    """Say how many of the starts that told their tokens held what was predicted."""
    frame = compared.sides[place].run.frame
    if "kv_cache_tokens_predicted" not in frame:
        return []
    told = frame.dropna(subset=["kv_cache_tokens", "kv_cache_tokens_predicted"])
    if told.empty:
        return []
    exact = int((told["kv_cache_tokens"] == told["kv_cache_tokens_predicted"]).sum())
    label = compared.sides[place].label
    if exact == len(told):
        return [f"{label} held as many KV tokens as predicted in all of {plural(len(told), 'trial')}."]
    worst = (told["kv_cache_tokens_predicted"] / told["kv_cache_tokens"] - 1).abs().max()
    held = f"{label} held as many KV tokens as predicted in {exact} of {plural(len(told), 'trial')}"
    return [f"{held}; at most {100 * worst:.2g} % off."]


def _outcome_sentences(compared: SideBySide) -> list[str]:
    """How many of the settings that others tried too each run served."""
    lines = []
    for place, side in enumerate(compared.sides):
        statuses = compared.table[f"status_{place}"].dropna()
        served = int(statuses.isin(MEASURED_STATUSES).sum())
        lines.append(f"{side.label} served {served} of {plural(len(statuses), 'setting')} that others tried too.")
    return lines


def side_by_side_document(compared: SideBySide) -> Mapping[str, Any]:
    """The whole as JSON of schema ``kvplan.side_by_side/1``."""
    return {
        "schema": SIDE_BY_SIDE_SCHEMA,
        "runs": [{"label": side.label, "directory": str(side.run.directory)} for side in compared.sides],
        "sentences": side_sentences(compared),
        **({"devices": [device.as_json() for device in compared.devices]} if compared.devices else {}),
        "circumstances": {each.name: list(each.values) for each in compared.circumstances},
        "settings": list(compared.settings),
        "rows": compared.records(),
        "num_settings_alone": list(compared.num_alone),
    }


def _plain(value: Any) -> Any:
    """A cell for JSON: None where there is no figure, whole numbers whole."""
    if isinstance(value, str):
        return value
    if pd.isna(value):
        return None
    number = value.item() if hasattr(value, "item") else value
    return int(number) if isinstance(number, float) and number.is_integer() else number
