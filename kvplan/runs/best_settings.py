"""The best setting for each goal, with its figures and the commands that deploy it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, TypedDict

from kvplan.runs.boundaries import SAME_THROUGHPUT
from kvplan.runs.columns import Row
from kvplan.runs.outliers import LOAD_NAMES, runs_by_setting, without_excluded
from kvplan.runs.rows import Cell, cell, is_measured, number, settings_of, throughput_of
from kvplan.runs.trials import TrialSettings

_FIGURES: Final = (
    "output_throughput",
    "total_token_throughput",
    "request_throughput",
    "median_ttft_ms",
    "p99_ttft_ms",
    "median_tpot_ms",
    "p99_tpot_ms",
    "kv_usage_max",
    "frag_pct",
    "num_preemptions",
    "request_goodput",
    "goodput_pct",
    "usd_per_mtok_out",
)
_DEPLOYED: Final = ("gpu_memory_utilization", "max_num_seqs", "block_size", "max_model_len", "max_num_batched_tokens")


class BestSetting(TypedDict):
    """A setting to deploy. figures: medians over its runs. spread: smallest and largest value, if it ran repeatedly."""

    goal: str
    reason: str
    trial_id: str
    status: str
    num_runs: int
    load: dict[str, Cell]
    spread: dict[str, list[float]]
    settings: dict[str, float | str]
    figures: dict[str, float | None]
    commands: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """The runs of one setting as one row: its figures are their medians, its status the worst of theirs."""

    row: Row
    num_runs: int
    spread: dict[str, list[float]]
    figures: dict[str, float | None]

    def figure(self, name: str) -> float:
        return self.figures[name] or 0.0

    @property
    def seconds_per_token(self) -> float:
        return 1.0 / throughput_of(self.row)

    @property
    def load(self) -> float:
        """A number that grows with the load, for candidates that differ in nothing else."""
        rate = self.row["request_rate"] if isinstance(self.row["request_rate"], int | float) else 0.0
        return float(rate or self.row["max_concurrency"] or 0.0)

    @property
    def is_complete(self) -> bool:
        return not self.row["num_clipped_prompts"] and not self.row["failed"]

    @property
    def is_undisturbed(self) -> bool:
        return self.row["status"] == "ok" and self.is_complete


_Cost = Callable[[_Candidate], float]
_GOALS: Final[tuple[tuple[str, _Cost, str], ...]] = (
    ("output_throughput", lambda candidate: candidate.seconds_per_token, "most output tokens per second"),
    ("median_tpot_ms", lambda candidate: candidate.figure("median_tpot_ms"), "shortest time per output token"),
    (
        "p99_ttft_ms",
        lambda candidate: candidate.figure("p99_ttft_ms"),
        "shortest time to first token (99th percentile)",
    ),
)


def best_settings(rows: Sequence[Row], model_id: str) -> list[BestSetting]:
    """The best setting for each goal, among those that served every request as asked and without waiting for blocks.

    If no trial did, those that had to queue or preempt are taken; if none was measured, the list is empty.
    """
    candidates = [
        _candidate(runs)
        for runs in runs_by_setting([row for row in without_excluded(rows) if is_measured(row)]).values()
    ]
    for is_good in (lambda c: c.is_undisturbed, lambda c: c.is_complete, lambda c: True):
        chosen = [candidate for candidate in candidates if is_good(candidate)]
        if chosen:
            within = _within_objectives(chosen, model_id)
            if within and any("slo" in str(row["planes"]).split(";") for row in rows):
                return within  # rows of a search differ in their load, so comparing them by anything else means little
            return within + [_best(goal, _first(chosen, cost), reason, model_id) for goal, cost, reason in _GOALS]
    return []


def _candidate(runs: Sequence[Row]) -> _Candidate:
    row = runs[0].copy()
    figures: dict[str, float | None] = {}
    spread: dict[str, list[float]] = {}
    for name in _FIGURES:
        values = [value for run in runs if (value := number(run, name)) is not None]
        figures[name] = median(values) if values else None
        if len(values) > 1:
            spread[name] = [min(values), max(values)]
    row["output_throughput"], row["frag_pct"] = figures["output_throughput"], figures["frag_pct"]
    row["slo_pass"] = all(run["slo_pass"] for run in runs)
    row["status"] = max((str(run["status"]) for run in runs), key=("ok", "queued", "preempted").index)
    return _Candidate(row, len(runs), spread, figures)


def _first(candidates: Sequence[_Candidate], cost: _Cost) -> _Candidate:
    """The candidate of least cost; of those that noise cannot tell from it, the one with the heaviest load (they differ
    in a search), then the longest context, then the least waste."""
    least = min(cost(candidate) for candidate in candidates)
    alike = [candidate for candidate in candidates if cost(candidate) <= least * (1 + SAME_THROUGHPUT)]
    return min(alike, key=lambda c: (-c.load, -c.row["max_model_len"], c.row["frag_pct"] or 0.0, cost(c)))


def _within_objectives(candidates: Sequence[_Candidate], model_id: str) -> list[BestSetting]:
    """The fastest setting among those that meet the service level, if one was asked for."""
    meeting = [candidate for candidate in candidates if candidate.row["slo_pass"]]
    if not meeting:
        return []
    fastest = _first(meeting, lambda candidate: candidate.seconds_per_token)
    return [_best("slo", fastest, "most output tokens per second within the service level", model_id)]


def _best(goal: str, candidate: _Candidate, reason: str, model_id: str) -> BestSetting:
    row, settings = candidate.row, settings_of(candidate.row)
    return {
        "goal": goal,
        "reason": reason,
        "trial_id": row["trial_id"],
        "status": row["status"],
        "num_runs": candidate.num_runs,
        "load": {name: cell(row, name) for name in LOAD_NAMES},
        "spread": candidate.spread,
        "settings": settings.as_json(),
        "figures": candidate.figures,
        "commands": {"kvplan": _python_command(model_id, settings), "vllm": _vllm_command(model_id, settings)},
    }


def _python_command(model_id: str, settings: TrialSettings) -> str:
    arguments = ", ".join(f"{name}={getattr(settings, name)}" for name in _DEPLOYED)
    return f'LLM(model="{model_id}", {arguments})'


def _vllm_command(model_id: str, settings: TrialSettings) -> str:
    options = " ".join(f"--{name.replace('_', '-')} {getattr(settings, name)}" for name in _DEPLOYED)
    return f"vllm serve {model_id} {options}"
