"""Scores what one result of a server says of its other loads. Run: python tools/score_own_point.py

    --csv FILE...       rows (default tools/published_speeds/speeds.csv, described beside it)
    --pivots N          results of each server that are, one at a time, the one that is known (default 3: the lightest
                        load, the middle one and the heaviest)
    --only TEXT         sources whose name contains it

A server is a source's rows of one deployment: same engine, release, model, GPUs, layout, formats and limits. All but
one of its rows are left out, and predicted by what that one says (``kvplan.estimate.speed.own_point``). The share of
errors that a server's loads have in common is found by an analysis of variance of the other sources' rows.

For each figure: rows, median and 90th percentile of |predicted / measured - 1| without and with the known result, how
many measurements lie in the interval of 90 %, and the median of its high end over its low one.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from kvplan.catalog.devices.measured import MeasuredProfiles, load_measured  # noqa: E402
from kvplan.catalog.devices.server_scale import ServerScale  # noqa: E402
from kvplan.catalog.published_errors import ErrorInterval, FigureName  # noqa: E402
from kvplan.errors import KvplanError  # noqa: E402
from kvplan.estimate.speed.own_point import COMMON, MeasuredFigure, OwnPoint, scale_of  # noqa: E402
from kvplan.estimate.speed.queueing.figures import Statistic, quantile  # noqa: E402
from kvplan.planner.choices.basis import PlanBasis, capacity_of, speed_model  # noqa: E402
from published_speeds.playing import engine_rules, played_load, pool_tokens  # noqa: E402
from published_speeds.predictions import start_of  # noqa: E402
from published_speeds.rows import PUBLISHED, PublishedRow, read_rows  # noqa: E402
from published_speeds.settings import deployed  # noqa: E402

FIGURES: tuple[FigureName, ...] = ("tpot", "throughput", "ttft")
_SERVER = (
    "engine",
    "engine_version",
    "model",
    "gpu",
    "gpu_count",
    "tp",
    "pp",
    "dp",
    "ep",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
)
_STATISTICS: Mapping[str, Statistic] = {"mean": "mean", "median": "p50"}


@dataclass(frozen=True)
class RowPoint:
    """A row as a result of its server. ``predicted``: without any result."""

    row: PublishedRow
    point: OwnPoint
    predicted: Mapping[FigureName, float]
    num_users: float

    @property
    def server(self) -> tuple[str, ...]:
        return (self.row.source, *(self.row.text[name] for name in _SERVER))

    def error(self, name: FigureName, predicted: Mapping[FigureName, float]) -> float | None:
        """log(measured / predicted); None where either is missing."""
        measured = self.point.measured.get(name)
        return None if measured is None or name not in predicted else math.log(measured.value / predicted[name])


@dataclass(frozen=True, slots=True)
class Outcome:
    """A figure of a row that was left out: its errors and intervals without and with the known result."""

    figure: FigureName
    before: float
    after: float
    interval_before: ErrorInterval
    interval_after: ErrorInterval


def main() -> None:
    arguments = _parser().parse_args()
    rows = [row for path in arguments.csv for row in read_rows(path) if isinstance(row, PublishedRow)]
    measured = load_measured(None)
    asked = (row_point(row, measured) for row in rows if arguments.only in row.source)
    points = [each for each in asked if each is not None]
    by_source = grouped_points(points, lambda each: each.row.source)
    print(f"{len(points)} rows; in common: {common_shares(points)}")
    found: list[Outcome] = []
    for source, of_source in sorted(by_source.items(), key=str):
        others = [each for each in points if each.row.source != source]
        common = common_shares(others) if others else dict(COMMON)
        outcomes = [
            outcome
            for server in grouped_points(of_source, lambda each: each.server).values()
            for outcome in left_out(server, common, arguments.pivots)
        ]
        print_outcomes(str(source), outcomes)
        found += outcomes
    print_outcomes("all", found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, nargs="*", default=[PUBLISHED])
    parser.add_argument("--pivots", type=int, default=3)
    parser.add_argument("--only", default="")
    return parser


def row_point(row: PublishedRow, measured: MeasuredProfiles) -> RowPoint | None:
    """None for a row that cannot be predicted, or is of grade C."""
    if row.grade not in "AB":
        return None
    try:
        point = _point(row, measured)
        predicted = point.figures(ServerScale())
    except KvplanError:
        return None
    if not predicted:
        return None
    load = point.load
    at_once = load.max_concurrency or (load.num_requests if load.requests_per_second is None else 1)
    return RowPoint(row, point, predicted, max(at_once, 1))


def _point(row: PublishedRow, measured: MeasuredProfiles) -> OwnPoint:
    """As ``published_speeds.predictions`` plays it."""
    found = deployed(row)
    basis = PlanBasis(found.request, found.workload, measured)
    start = start_of(found)
    model = speed_model(basis, found.choice, start)
    tokens = capacity_of(basis, found.choice, start).average_sequences * found.workload.average_context
    pool = pool_tokens(row, found, start, tokens)
    seen = row.measured
    figures: dict[FigureName, MeasuredFigure] = {}
    if seen.ttft_ms:
        figures["ttft"] = MeasuredFigure(_STATISTICS[seen.ttft_kind], seen.ttft_ms / 1000)
    if seen.tpot_ms:
        figures["tpot"] = MeasuredFigure(_STATISTICS[seen.tpot_kind], seen.tpot_ms / 1000)
    if seen.output_throughput:
        figures["throughput"] = MeasuredFigure("mean", seen.output_throughput / found.replicas)
    rules = engine_rules(row, found, start, pool)
    return OwnPoint(model, played_load(row, found.replicas, pool), rules, figures)


def grouped_points(points: Iterable[RowPoint], key: Callable[[RowPoint], Hashable]) -> dict[Hashable, list[RowPoint]]:
    found: defaultdict[Hashable, list[RowPoint]] = defaultdict(list)
    for point in points:
        found[key(point)].append(point)
    return dict(found)


def common_shares(points: Sequence[RowPoint]) -> dict[FigureName, float]:
    """The share of the variance of errors that loads of one server have in common: by moments, one way, with servers of
    two rows and more (the usual estimator of the intraclass correlation); 0.05 to 0.95."""
    servers = [each for each in grouped_points(points, lambda each: each.server).values() if len(each) > 1]
    return {name: _common_share([_errors(server, name) for server in servers]) for name in FIGURES}


def _errors(server: Sequence[RowPoint], name: FigureName) -> list[float]:
    return [found for each in server if (found := each.error(name, each.predicted)) is not None]


def _common_share(groups: Sequence[Sequence[float]]) -> float:
    groups = [each for each in groups if len(each) > 1]
    total, count = sum(map(len, groups)), len(groups)
    if count < 2:
        return 0.5
    mean = sum(map(sum, groups)) / total
    within = sum((value - statistics.fmean(each)) ** 2 for each in groups for value in each) / (total - count)
    between = sum(len(each) * (statistics.fmean(each) - mean) ** 2 for each in groups) / (count - 1)
    size = (total - sum(len(each) ** 2 for each in groups) / total) / (count - 1)
    of_servers = max((between - within) / size, 0.0)
    return min(max(of_servers / (of_servers + within), 0.05), 0.95)


def left_out(server: Sequence[RowPoint], common: Mapping[FigureName, float], num_pivots: int) -> list[Outcome]:
    """Every other row of the server, by what each pivot says."""
    ordered = sorted(server, key=lambda each: each.num_users)
    if len(ordered) < 2:
        return []
    places = {round(index * (len(ordered) - 1) / max(num_pivots - 1, 1)) for index in range(num_pivots)}
    found: list[Outcome] = []
    for place in sorted(places):
        scale = scale_of([ordered[place].point], common)
        for number, other in enumerate(ordered):
            if number != place:
                found += _outcomes(other, scale)
    return found


def _outcomes(other: RowPoint, scale: ServerScale) -> list[Outcome]:
    found, predicted = [], other.point.figures(scale)
    model = replace(other.point.model, scale=scale)
    for name in FIGURES:
        before, after = other.error(name, other.predicted), other.error(name, predicted)
        known = other.point.model.error_interval(name)
        if before is None or after is None or known is None:
            continue
        narrow = model.error_interval(name, other.num_users)
        assert narrow is not None, "a scale says one of every figure"
        found.append(Outcome(name, before, after, known, narrow))
    return found


def print_outcomes(name: str, outcomes: Sequence[Outcome]) -> None:
    """A line for each figure."""
    for figure in FIGURES:
        of_it = [each for each in outcomes if each.figure == figure]
        if not of_it:
            continue
        before = _summary([each.before for each in of_it], [each.interval_before for each in of_it])
        after = _summary([each.after for each in of_it], [each.interval_after for each in of_it])
        print(f"{name[:24]:25}{figure:11}{len(of_it):6}  before {before}   after {after}", flush=True)


def _summary(errors: Sequence[float], intervals: Sequence[ErrorInterval]) -> str:
    off = sorted(abs(math.exp(-each) - 1) for each in errors)
    held = sum(
        interval.low <= math.exp(each) <= interval.high for each, interval in zip(errors, intervals, strict=True)
    )
    width = statistics.median(each.high / each.low for each in intervals)
    ends = f"{100 * statistics.median(off):4.0f} /{100 * quantile(off, 0.9):5.0f} %"
    return f"{ends}, held {100 * held / len(errors):3.0f} %, width {width:5.1f}"


if __name__ == "__main__":
    main()
