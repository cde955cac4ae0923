"""The outcomes of a run over two of its settings: which settings, and what is known of each pair of values.

The plots draw it: ``plots/outcomes.py`` as a grid, ``plots/frontier.py`` to scale where a grid would be too large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

import pandas as pd

from kvplan.reports.selection import best_trial, slices, varied_columns
from kvplan.reports.wording import fixed_phrase, plural
from kvplan.runs.statuses import MEASURED_STATUSES, OUT_OF_MEMORY_STATUSES, context_limit_text, worst_of
from kvplan.runs.storage.reader import Document, Run

# What a map may run over, the horizontal one first. Memory decides between the first two.
_MAP_COLUMNS: Final = (
    "gpu_memory_utilization",
    "max_model_len",
    "max_num_seqs",
    "block_size",
    "max_num_batched_tokens",
    "quantization",
    "max_loras",
    "max_lora_rank",
    "group_size",
    "kv_cache_dtype",
    "dtype",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "enable_expert_parallel",
    "num_speculative_tokens",
)


@dataclass(frozen=True, slots=True, eq=False)
class OutcomeMap:
    """The widest plane of a run over the settings ``x_column`` and ``y_column``.

    along: the one of the two that was searched for a boundary, or that memory limits; None for any other pair.
    fixed: all other settings. num_elsewhere: settings of the run that are not in this plane.

    cells: one row per pair tried. x, y: the place of its values among all of them, ascending; status: the worst of the
    repetitions, because a setting that fails now and then is not safe; serves: whether it was expected to serve, None
    without a prediction; throughput: median of the repetitions, without runs that a rerun replaces; largest_context and
    limited_by: the largest max_model_len and whose limit it is, where the engine told; clipped: served prompts that
    were shortened to fit the context; num_trials; is_flagged: fails although a harder setting worked.
    """

    x_column: str
    y_column: str
    along: str | None
    cells: pd.DataFrame
    fixed: Document
    num_elsewhere: int

    @property
    def served(self) -> pd.Series:
        """True for every cell in which all requests were served."""
        return self.cells["status"].isin(MEASURED_STATUSES)

    @property
    def ran(self) -> pd.Series:
        """True for every cell that was run and showed whether its memory suffices."""
        return self.served | self.cells["status"].isin(OUT_OF_MEMORY_STATUSES)

    @property
    def num_not_run(self) -> int:
        return int((self.cells["status"] == "skipped_oom_dominated").sum())

    def values(self, column: str) -> list[float | str]:
        """The distinct values of an axis, ascending."""
        return sorted(self.cells[column].unique())


def outcome_map(run: Run) -> OutcomeMap | None:
    """The map of a run; None where fewer than two pairs were tried."""
    x, y, along = _columns(run)
    frame = run.frame.dropna(subset=[x, y])
    # A trial that never started may not know its dtype; that must not put it on another map.
    frame = frame.assign(dtype=frame["dtype"].replace("", run.first("dtype")))
    # A run that its rerun replaces was still an outcome, but its throughput is not the setting's.
    replaced = frame["trial_id"].isin(list(run.excluded))
    frame = frame.assign(output_throughput=frame["output_throughput"].mask(replaced))
    # Runs that a rerun replaces count for the outcome, not for the speed.
    frame["output_throughput"] = frame["output_throughput"].mask(frame["trial_id"].isin(list(run.excluded)))
    planes = slices(frame, (x, y), best_trial(run))
    if not planes:
        return None
    part = max(planes, key=lambda plane: len(plane.trials.drop_duplicates([x, y])))
    cells = _cells(part.trials.assign(is_flagged=_is_flagged(part.trials, violations(run))), x, y)
    num_settings = sum(len(plane.trials.drop_duplicates([x, y])) for plane in planes)
    return OutcomeMap(x, y, along, cells, part.fixed, num_settings - len(cells)) if len(cells) > 1 else None


def _columns(run: Run) -> tuple[str, str, str | None]:
    """(x, y, along): what was searched, then utilization and context, then the first settings that vary."""
    searched, all_varied = _searched(run), varied_columns(run)
    varied = [name for name in _MAP_COLUMNS if name in all_varied]
    x, y = list(dict.fromkeys([*searched, *varied, *_MAP_COLUMNS[:2]]))[:2]
    if x in varied and y in varied:
        x, y = sorted((x, y), key=_MAP_COLUMNS.index)
    limits = [name for name in (*searched, "max_model_len", "gpu_memory_utilization") if name in varied]
    return x, y, next((name for name in limits if name in (x, y)), None)


def _searched(run: Run) -> list[str]:
    """The axes of the boundary that was searched, those of a pair first; [] of none."""
    options = run.manifest.get("options")
    asked = options.get("boundary") if isinstance(options, dict) else None
    listed = sorted(map(str, asked), key=lambda entry: "*" not in entry) if isinstance(asked, list) else []
    return [name for entry in listed for name in entry.split("*") if name in _MAP_COLUMNS]


def _cells(trials: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    cells = trials.groupby([x, y], as_index=False).agg(
        status=("status", worst_of),
        predicted_status=("predicted_status", "first"),
        throughput=("output_throughput", "median"),
        usage=("kv_usage_max", "median"),
        largest_context=("largest_max_model_len", "first"),
        limited_by=("context_limited_by", "first"),
        clipped=("num_clipped_prompts", "max"),
        num_trials=("status", "size"),
        is_flagged=("is_flagged", "any"),
    )
    serves = [status in MEASURED_STATUSES if status else None for status in cells["predicted_status"]]
    places = {axis: cells[column].rank(method="dense") - 1 for axis, column in (("x", x), ("y", y))}
    # A trial that did not serve did no other work either.
    clipped = cells["clipped"].gt(0) & cells["status"].isin(MEASURED_STATUSES)
    return cells.assign(serves=pd.Series(serves, dtype=object), clipped=clipped, **places)


def violations(run: Run) -> list[Document]:
    """The settings of failures that the summary flags because a harder setting worked."""
    found = [(entry.get("at"), str(entry.get("axis")), entry.get("failed")) for entry in run.entries("violations")]
    return [{**at, axis: failed} for at, axis, failed in found if isinstance(at, dict)]


def _is_flagged(trials: pd.DataFrame, flagged: Sequence[Document]) -> pd.Series:
    agrees = pd.Series(False, index=trials.index)
    for settings in flagged:
        if settings.keys() <= set(trials.columns):
            agrees |= (trials[list(settings)] == pd.Series(cast(dict[str, object], settings))).all(axis=1)
    return agrees


def caption(run: Run, plane: OutcomeMap) -> str:
    """What the plane holds fixed, what of the run is not on it, and the model's limit where a trial exceeded it."""
    count = plane.num_elsewhere
    elsewhere = f"; {plural(count, 'other setting')} of the run not on this map" if count else ""
    not_run = f"; {plural(plane.num_not_run, 'setting')} beyond a failure not run" if plane.num_not_run else ""
    beyond_model = plane.cells["largest_context"][plane.cells["limited_by"] == "model"]
    positions = "" if beyond_model.empty else f"; {context_limit_text(int(beyond_model.iloc[0]), 'model')}"
    return f"{fixed_phrase(run, plane.fixed)}{elsewhere}{not_run}{positions}"


def prediction_verdict(plane: OutcomeMap) -> str:
    """``the prediction was right for all 27``, over the cells that ran; '' without a prediction."""
    known = plane.cells["serves"].notna() & plane.ran
    wrong = int((plane.cells["serves"][known] != plane.served[known]).sum())
    if not known.any():
        return ""
    return (
        f"the prediction was wrong for {wrong} of {known.sum()}"
        if wrong
        else (f"the prediction was right for all {known.sum()}")
    )
