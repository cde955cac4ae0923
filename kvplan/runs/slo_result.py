"""What a search for the largest load found, from its rows: the load, how certain it is, and goodput there."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Final, Literal, TypedDict

from kvplan.runs.columns import Row
from kvplan.runs.outliers import excluded_runs
from kvplan.runs.rows import is_measured, settings_of
from kvplan.runs.trials import TrialSettings

LoadVariable = Literal["request_rate", "max_concurrency"]

_Z95: Final = 1.959964  # of the normal distribution: 95 % within


@dataclass(frozen=True, slots=True)
class ShareInterval:
    """A share of runs or requests with its Wilson score interval (E. B. Wilson, JASA 22, 1927, p. 209) at 95 %."""

    share: float
    low: float
    high: float

    @staticmethod
    def of(num_good: int, count: int) -> ShareInterval:
        """``num_good`` of ``count``, which is at least 1."""
        share = num_good / count
        square = _Z95**2
        centre = (share + square / (2 * count)) / (1 + square / count)
        half = _Z95 / (1 + square / count) * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
        return ShareInterval(share, max(0.0, centre - half), min(1.0, centre + half))


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """All runs under one load. requests_within: of the requests of all runs; request_goodput: median over the runs."""

    value: float
    num_runs: int
    num_keeping: int
    runs_keeping: ShareInterval
    requests_within: ShareInterval
    request_goodput: float
    request_goodput_range: tuple[float, float]
    p99_ttft_ms: float | None
    p99_tpot_ms: float | None

    @property
    def keeps(self) -> bool:
        return 2 * self.num_keeping > self.num_runs


@dataclass(frozen=True, slots=True)
class SloResult:
    """The largest load that keeps the service level in most runs at one setting.

    keeps, misses: the last load that does and the next one, which does not; None if there was none. always, never: the
    largest load up to which every run kept it, and the smallest from which none did.
    """

    variable: LoadVariable
    settings: TrialSettings
    keeps: float | None
    misses: float | None
    always: float | None
    never: float | None
    points: tuple[LoadPoint, ...]
    sentence: str

    def as_json(self) -> dict[str, object]:
        return asdict(self) | {"settings": self.settings.as_json()}


class SloSummary(TypedDict):
    """The service level and what each search for it found (SloResult as JSON)."""

    objectives_ms: dict[str, float]
    criterion: str
    searches: list[dict[str, object]]


def slo_results(rows: Sequence[Row], objectives_ms: Mapping[str, float]) -> SloSummary | None:
    """None without a service level."""
    if not objectives_ms:
        return None
    excluded = {exclusion.trial_id for exclusion in excluded_runs(rows)}
    searched = [row for row in rows if "slo" in str(row["planes"]).split(";") and row["trial_id"] not in excluded]
    lines: dict[TrialSettings, list[Row]] = defaultdict(list)
    for row in searched:
        lines[settings_of(row)].append(row)
    results = [_result(settings, line, objectives_ms) for settings, line in lines.items()]
    return {
        "objectives_ms": dict(objectives_ms),
        "criterion": "99th percentile of every objective, in more than half of the runs",
        "searches": [result.as_json() for result in results if result is not None],
    }


def _result(settings: TrialSettings, line: Sequence[Row], objectives_ms: Mapping[str, float]) -> SloResult | None:
    variable: LoadVariable = "request_rate" if len({row["request_rate"] for row in line}) > 1 else "max_concurrency"
    runs: dict[float, list[Row]] = defaultdict(list)
    for row in line:
        load = row[variable]
        # The run with all requests at once (rate "inf") measures the capacity; it is not a load of the search.
        if isinstance(load, int | float):
            runs[float(load)].append(row)
    points = tuple(_point(value, runs[value]) for value in sorted(runs))
    if not points:
        return None
    misses = next((point.value for point in points if not point.keeps), None)
    keeps = max((p.value for p in points if p.keeps and (misses is None or p.value < misses)), default=None)
    partial = next((point.value for point in points if point.num_keeping < point.num_runs), math.inf)
    always = max((point.value for point in points if point.value < partial), default=None)
    last = max((point.value for point in points if point.num_keeping), default=-math.inf)
    never = min((point.value for point in points if point.value > last), default=None)
    sentence = _sentence(variable, settings, objectives_ms, points, keeps, misses)
    return SloResult(variable, settings, keeps, misses, always, never, points, sentence)


def _point(value: float, runs: Sequence[Row]) -> LoadPoint:
    """A run that was not served to its end kept nothing."""
    num_keeping = sum(bool(run["slo_pass"]) for run in runs)
    num_requests = sum(run["num_prompts"] for run in runs)
    num_good = sum(round((run["goodput_pct"] or 0.0) / 100 * run["num_prompts"]) for run in runs)
    goodputs = [run["request_goodput"] or 0.0 for run in runs]
    return LoadPoint(
        value=value,
        num_runs=len(runs),
        num_keeping=num_keeping,
        runs_keeping=ShareInterval.of(num_keeping, len(runs)),
        requests_within=ShareInterval.of(num_good, num_requests),
        request_goodput=median(goodputs),
        request_goodput_range=(min(goodputs), max(goodputs)),
        p99_ttft_ms=_median(run["p99_ttft_ms"] for run in runs if is_measured(run)),
        p99_tpot_ms=_median(run["p99_tpot_ms"] for run in runs if is_measured(run)),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _sentence(
    variable: LoadVariable,
    settings: TrialSettings,
    objectives_ms: Mapping[str, float],
    points: Sequence[LoadPoint],
    keeps: float | None,
    misses: float | None,
) -> str:
    unit = " requests/s" if variable == "request_rate" else ""
    level = ", ".join(f"{name} {bound:g} ms" for name, bound in objectives_ms.items())
    where = f"{settings.max_num_seqs} sequences, utilization {settings.gpu_memory_utilization:g}"
    by_value = {point.value: point for point in points}
    if keeps is None:
        lowest = points[0]
        return f"{where}: {level} (p99) is missed even at {variable} {lowest.value:g}{unit} ({_runs_phrase(lowest)})"
    at = by_value[keeps]
    beyond = "the highest load tried" if misses is None else f"at {misses:g} {_runs_phrase(by_value[misses])}"
    within = at.requests_within
    return (
        f"{where}: {level} (p99) is met up to {variable} {keeps:g}{unit} ({_runs_phrase(at)}; {beyond}); "
        f"goodput {at.request_goodput:.3g} requests/s, {100 * within.share:.0f} % of requests within the service level "
        f"(95 % interval {100 * within.low:.0f} to {100 * within.high:.0f} %)"
    )


def _runs_phrase(point: LoadPoint) -> str:
    noun = "run" if point.num_runs == 1 else "runs"
    return f"{point.num_keeping} of {point.num_runs} {noun}"
