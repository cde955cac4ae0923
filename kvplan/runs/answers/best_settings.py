"""The best setting for each goal, with its figures and the commands that deploy it.

Settings that differ in nothing but ``max_model_len`` and ``gpu_memory_utilization`` do the same steps, as long as no
request waits for blocks or is clipped: what their timings differ by is noise, and says how large that is here. Among
the settings that noise cannot tell from the best one, the one with the most room is taken.

What a pool holds, what a load reached of it, and what held it back: the headline of a run that only counted.

Sequences at once are the smaller of what the pool has room for and what the load asks of it. So both are said, and why
they differ: found by elimination, since a scheduler admits whatever seats, blocks, the load and a step's tokens allow.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, TypedDict

from kvplan.catalog.engines import KVPLAN_DEFAULTS
from kvplan.runs.answers.beside import predicted_of
from kvplan.runs.answers.deploy import deployment_of
from kvplan.runs.answers.outliers import FAR_SHARE, noise_reason, runs_by_setting, without_excluded
from kvplan.runs.answers.slo_result import SloResult
from kvplan.runs.columns import Row
from kvplan.runs.rows import Cell, cell, is_counted, is_measured, number, settings_of, throughput_of
from kvplan.runs.trials import LOAD_NAMES, SETTING_NAMES
from kvplan.units import format_tokens, plural

_ALIKE = 0.005
"""Two counts of a pool's tokens this close are said once."""
_FIGURES: Final = (
    "output_throughput",
    "total_token_throughput",
    "request_throughput",
    "median_ttft_ms",
    "p99_ttft_ms",
    "median_tpot_ms",
    "p99_tpot_ms",
    "num_blocks_total",
    "max_running",
    "kv_usage_max",
    "frag_pct",
    "num_preemptions",
    "request_goodput",
    "goodput_pct",
    "usd_per_mtok_out",
)
# Timings this close are the same, also where nothing was measured twice.
LEAST_NOISE: Final = 0.03
_ROOM_NAMES: Final = ("max_model_len", "gpu_memory_utilization")


class BestSetting(TypedDict):
    """A setting to deploy. figures: medians over its runs. spread: smallest and largest value, if it ran repeatedly.

    predicted: what was expected of it, under the names of what was measured.
    noise_pct: how far apart two costs may be and still count as the same. num_alike: settings that are, with this one.
    """

    goal: str
    reason: str
    trial_id: str
    status: str
    num_runs: int
    num_alike: int
    noise_pct: float
    load: dict[str, Cell]
    spread: dict[str, list[float]]
    settings: dict[str, float | str]
    figures: dict[str, float | None]
    commands: dict[str, str]
    refusals: list[str]
    predicted: dict[str, Cell]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """The runs of one setting as one row: its figures are their medians, its status the worst of theirs.

    is_quiet: nothing else used the machine during any of them.
    """

    row: Row
    num_runs: int
    spread: dict[str, list[float]]
    figures: dict[str, float | None]
    is_quiet: bool

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

    @property
    def work(self) -> tuple[Cell, ...]:
        """Equal for candidates that do the same steps."""
        names = [name for name in (*SETTING_NAMES, *LOAD_NAMES) if name not in _ROOM_NAMES or not self.is_undisturbed]
        return tuple(cell(self.row, name) for name in names)

    @property
    def preference(self) -> tuple[float, ...]:
        """The smaller, the better, among candidates of equal cost: a heavier load (they differ in a search), a longer
        context, more memory, a block size near the default, less waste."""
        row = self.row
        usual = KVPLAN_DEFAULTS.block_size or 16
        blocks = abs(math.log2((row["block_size"] or usual) / usual))
        room = (-(row["max_model_len"] or 0), -(row["gpu_memory_utilization"] or 0.0))
        return (-self.load, *room, blocks, row["frag_pct"] or 0.0)


@dataclass(frozen=True, slots=True)
class _Choice:
    """A candidate, how many others are as good, and whether one of those has a lower figure."""

    candidate: _Candidate
    noise: float
    num_alike: int
    is_lowest: bool


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


def best_settings(rows: Sequence[Row], model: str, searches: Sequence[SloResult] = ()) -> list[BestSetting]:
    """The best setting for each goal, among those that served every request as asked and without waiting for blocks.

    If no trial did, those that had to queue or preempt are taken; if none was measured, the list is empty. ``model``:
    what the commands load. ``searches``: where some found a load within the service level, the fastest of these loads
    is the only answer, because rows of a search differ in their load. Where nothing was computed, the answer is the
    setting that ran the most sequences at once.
    """
    candidates = [
        _candidate(runs)
        for runs in runs_by_setting([row for row in without_excluded(rows) if is_measured(row)]).values()
    ]
    found = [candidate for candidate in candidates if any(_is_found(candidate, search) for search in searches)]
    if found:
        return [_within_objectives(found, model)]
    for is_good in (lambda c: c.is_undisturbed, lambda c: c.is_complete, lambda c: True):
        chosen = [candidate for candidate in candidates if is_good(candidate)]
        if chosen and is_counted(chosen[0].row):
            most = _most_at_once(chosen)
            return [_best("max_running", most, capacity_text(most.candidate.row), model)]
        if chosen:
            meeting = [candidate for candidate in chosen if candidate.row["slo_pass"]]
            within = [_within_objectives(meeting, model)] if meeting else []
            return within + [_best(goal, _first(chosen, cost), reason, model) for goal, cost, reason in _GOALS]
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
    row["slo_pass"] = 2 * sum(bool(run["slo_pass"]) for run in runs) > len(runs)
    row["status"] = max((str(run["status"]) for run in runs), key=("ok", "queued", "preempted").index)
    return _Candidate(row, len(runs), spread, figures, all(noise_reason(run) is None for run in runs))


def _is_found(candidate: _Candidate, search: SloResult) -> bool:
    """Whether the candidate is the load that the search ended with."""
    is_its_load = search.keeps is not None and number(candidate.row, search.variable) == search.keeps
    return is_its_load and settings_of(candidate.row) == search.settings


def _noise(candidates: Sequence[_Candidate]) -> float:
    """How far apart the same work was timed here, as a share: of runs, and of settings that do the same steps."""
    throughputs: dict[tuple[Cell, ...], list[float]] = defaultdict(list)
    for candidate in candidates:
        if candidate.is_quiet:
            throughputs[candidate.work] += candidate.spread.get("output_throughput") or [throughput_of(candidate.row)]
    spreads = [(max(rates) - min(rates)) / median(rates) for rates in throughputs.values() if len(rates) > 1]
    return min(max([LEAST_NOISE, median(spreads) if spreads else 0.0]), FAR_SHARE)


def _first(candidates: Sequence[_Candidate], cost: _Cost) -> _Choice:
    """The candidate of least cost, or the preferred one of those that noise cannot tell from it.

    The same work costs the same: the median over all candidates that do it.
    """
    costs, noise = _costs_of_work(candidates, cost), _noise(candidates)
    least = min(costs.values())
    alike = [candidate for candidate in candidates if costs[candidate.work] <= least * (1 + noise)]
    first = min(alike, key=lambda candidate: (not candidate.is_quiet, candidate.preference, cost(candidate)))
    return _Choice(first, noise, len(alike), cost(first) <= min(map(cost, alike)))


def _costs_of_work(candidates: Sequence[_Candidate], cost: _Cost) -> dict[tuple[Cell, ...], float]:
    """The median cost of each kind of work, without the candidates timed on a busy machine where others did it too."""
    groups: dict[tuple[Cell, ...], list[_Candidate]] = defaultdict(list)
    for candidate in candidates:
        groups[candidate.work].append(candidate)
    quiet = {work: [each for each in group if each.is_quiet] or group for work, group in groups.items()}
    return {work: median(map(cost, group)) for work, group in quiet.items()}


def _most_at_once(candidates: Sequence[_Candidate]) -> _Choice:
    """The choice among candidates without speeds, whose counts are exact: the preferred of those that run the most."""
    most = max(candidate.figure("max_running") for candidate in candidates)
    alike = [candidate for candidate in candidates if candidate.figure("max_running") == most]
    return _Choice(min(alike, key=lambda candidate: candidate.preference), 0.0, len(alike), True)


def _within_objectives(meeting: Sequence[_Candidate], model: str) -> BestSetting:
    """The fastest setting among those that meet the service level."""
    fastest = _first(meeting, lambda candidate: candidate.seconds_per_token)
    return _best("slo", fastest, "most output tokens per second within the service level", model)


def _best(goal: str, choice: _Choice, reason: str, model: str) -> BestSetting:
    candidate, row = choice.candidate, choice.candidate.row
    in_flight = row["max_concurrency"] if goal == "slo" else None
    deployment = deployment_of(row, model, max_num_seqs=in_flight)
    return {
        "goal": goal,
        "reason": "; ".join([reason, *_remarks(choice), *_limit(row, in_flight), *deployment.refusals]),
        "trial_id": row["trial_id"],
        "status": row["status"],
        "num_runs": candidate.num_runs,
        "num_alike": choice.num_alike,
        "noise_pct": round(100 * choice.noise, 2),
        "load": {name: cell(row, name) for name in LOAD_NAMES},
        "spread": candidate.spread,
        "settings": {name: value for name, value in settings_of(row).as_json().items() if cell(row, name) is not None},
        "figures": candidate.figures,
        "commands": deployment.commands,
        "refusals": list(deployment.refusals),
        "predicted": predicted_of(row),
    }


def _limit(row: Row, in_flight: int | None) -> list[str]:
    if in_flight is None or in_flight >= (row["max_num_seqs"] or 0):
        return []
    return [f"measured with {in_flight} requests in flight, so the commands admit max_num_seqs {in_flight}"]


def _remarks(choice: _Choice) -> list[str]:
    row, remarks = choice.candidate.row, []
    if (preempted := preemption_text(row)) is not None and not is_counted(row):  # else the capacity says it
        remarks.append(preempted)
    clipped = row["num_clipped_prompts"]
    if clipped:
        remarks.append(
            f"{plural(clipped, 'request')} had to be clipped to max_model_len, so it served less than was asked"
        )
    if not choice.is_lowest:
        percent = f"{100 * choice.noise:.0f} %"
        remarks.append(f"{choice.num_alike} settings are alike within {percent}, this one has the most room")
    return remarks


def capacity_text(row: Row) -> str:
    """``the pool holds 3.8 sequences of 160k tokens (629,312 tokens), and this load reached 128: ...``.

    Without the pool's tokens, which rows of earlier versions lack, only what was reached.
    """
    reached = f"this load reached {row['max_running'] or 0:,} at once: {_held_back(row)}"
    tokens, longest = row.get("kv_cache_tokens"), row["max_model_len"]
    if not tokens or not longest:
        return reached
    return (
        f"the pool holds {_sequences(tokens, longest)} of {format_tokens(longest)} tokens ({tokens:,} tokens"
        f"{_as_vllm_counts(row, tokens, longest)}), and {reached}"
    )


def preemption_text(row: Row) -> str | None:
    """Say that a setting preempts, None where it does not."""
    number = row.get("num_preemptions")
    return f"blocks ran out: {plural(int(number), 'preemption')}" if number else None


def _sequences(tokens: int, longest: int) -> str:
    number = tokens / longest
    return f"{number:,.1f} sequences" if number < 10 else f"{int(number):,} sequences"


def _as_vllm_counts(row: Row, tokens: int, longest: int) -> str:
    """vLLM's own count, where its blocks of unlike layers hold another number."""
    theirs = row.get("kv_cache_tokens_vllm")
    if theirs is None or abs(theirs / tokens - 1) < _ALIKE:
        return ""
    return f"; vLLM's own blocks, as it counts them, {theirs:,}: {_sequences(theirs, longest)}"


def _held_back(row: Row) -> str:
    running, seats = row["max_running"] or 0, row["max_num_seqs"]
    in_flight, requests = row["max_concurrency"], row["num_prompts"]
    if (preempted := preemption_text(row)) is not None:
        return preempted
    if row["status"] == "queued":
        return "blocks ran out, so requests waited for them"
    if seats and running >= seats:
        return f"max_num_seqs {seats:,} seats no more"
    if in_flight and running >= in_flight:
        return f"it keeps {in_flight:,} in flight"
    if requests and running >= requests:
        return f"it has {plural(requests, 'request')}"
    step = row["max_num_batched_tokens"]
    return f"{step:,} tokens a step held prompts back" if step else "a step's tokens held prompts back"
