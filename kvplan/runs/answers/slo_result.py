"""What a search for the largest load found, from its rows: the load, how certain it is, and goodput there."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Final, Literal, TypedDict

from kvplan.runs.answers.outliers import excluded_runs
from kvplan.runs.columns import Row
from kvplan.runs.rows import is_measured, settings_of
from kvplan.runs.setting_text import settings_text, shown_settings, varied_settings
from kvplan.runs.trials import TrialSettings
from kvplan.units import plural

LoadVariable = Literal["request_rate", "max_concurrency", "users"]
"""What a search varies, by the column that holds it."""

_Z95: Final = 1.959964  # of the normal distribution: 95 % within


def objectives_ms(slo_seconds: Mapping[str, float]) -> dict[str, float]:
    """The bounds of a service level as JSON and rows have them."""
    return {name: round(1000 * bound, 6) for name, bound in slo_seconds.items()}


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
    largest load up to which every run kept it, and the smallest from which none did. settings: None for a server whose
    settings are not known.
    """

    variable: LoadVariable
    settings: TrialSettings | None
    keeps: float | None
    misses: float | None
    always: float | None
    never: float | None
    points: tuple[LoadPoint, ...]
    sentence: str

    def as_json(self) -> dict[str, object]:
        return asdict(self) | {"settings": {} if self.settings is None else self.settings.known_values()}


class SloSummary(TypedDict):
    """The service level and what each search for it found (SloResult as JSON)."""

    objectives_ms: dict[str, float]
    criterion: str
    searches: list[dict[str, object]]


def slo_results(rows: Sequence[Row], objectives_ms: Mapping[str, float]) -> SloSummary | None:
    """None without a service level."""
    if not objectives_ms:
        return None
    return slo_summary(search_results(rows, objectives_ms), objectives_ms)


def slo_summary(results: Sequence[SloResult], objectives_ms: Mapping[str, float]) -> SloSummary:
    """The results as the summary has them."""
    return {
        "objectives_ms": dict(objectives_ms),
        "criterion": "99th percentile of every objective, in more than half of the runs",
        "searches": [result.as_json() for result in results],
    }


def search_results(rows: Sequence[Row], objectives_ms: Mapping[str, float]) -> list[SloResult]:
    """One result for each setting at which a load was searched."""
    excluded = {exclusion.trial_id for exclusion in excluded_runs(rows)}
    searched = [row for row in rows if "slo" in str(row["design_parts"]).split(";") and row["trial_id"] not in excluded]
    lines: dict[TrialSettings, list[Row]] = defaultdict(list)
    for row in searched:
        lines[settings_of(row)].append(row)
    shown = shown_settings(varied_settings(lines))
    results = [
        line_result(settings, line, objectives_ms, settings_text(settings, shown)) for settings, line in lines.items()
    ]
    return [result for result in results if result is not None]


def line_result(
    settings: TrialSettings | None,
    line: Sequence[Row],
    objectives_ms: Mapping[str, float],
    where: str,
    variable: LoadVariable | None = None,
) -> SloResult | None:
    """The result of one search's rows, ``where`` naming what was searched; None if no load was tried.

    variable: what was searched; without it what differs between the rows.
    """
    varies = len({row["request_rate"] for row in line}) > 1
    variable = variable or ("request_rate" if varies else "max_concurrency")
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
    result = SloResult(variable, settings, keeps, misses, always, never, points, "")
    return replace(result, sentence=_sentence(result, objectives_ms, where))


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


def load_text(variable: str, value: float) -> str:
    """``4 users``, ``max_concurrency 4``, ``request_rate 0.5 requests/s``."""
    if variable == "users":
        return plural(int(value), "user")
    return f"{variable} {value:g}{' requests/s' if variable == 'request_rate' else ''}"


def _sentence(result: SloResult, objectives_ms: Mapping[str, float], where: str) -> str:
    variable, keeps, misses = result.variable, result.keeps, result.misses
    level = ", ".join(f"{name} {bound:g} ms" for name, bound in objectives_ms.items())
    by_value = {point.value: point for point in result.points}
    if keeps is None:
        lowest = result.points[0]
        even = load_text(variable, lowest.value)
        return f"{where}: {level} (p99) is missed even at {even} ({_runs_phrase(lowest)})"
    at = by_value[keeps]
    beyond = "the highest load tried" if misses is None else f"at {misses:g} in {_runs_phrase(by_value[misses])}"
    every = "" if result.always in (None, keeps) else f"in every run up to {result.always:g}; "
    within = at.requests_within
    return (
        f"{where}: {level} (p99) is met up to {load_text(variable, keeps)} (in {_runs_phrase(at)}; {every}{beyond}); "
        f"goodput {at.request_goodput:.3g} requests/s, {100 * within.share:.0f} % of the requests of all runs within "
        f"the service level (95 % interval {100 * within.low:.0f} to {100 * within.high:.0f} %)"
    )


def _runs_phrase(point: LoadPoint) -> str:
    return f"{point.num_keeping} of {plural(point.num_runs, 'run')}"
