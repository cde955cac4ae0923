"""Intervals from the errors of scored rows: quantiles of measured / predicted, held out by source.

A group of rows is wide enough for an interval of its own with ``LEAST_ROWS`` of ``LEAST_SOURCES``; the fewer ones use
that of a larger group. Rows of one source are more alike than two sources are, so plain 5 % and 95 % quantiles hold too
few rows of a new source: the quantiles are moved outward until those of the other sources hold 9 in 10 rows of each
source that is held out, where any do. For a kind of model on a generation of GPUs that no row of a group is of, the
interval is as wide on both sides (``ErrorInterval.of``).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

from kvplan.catalog.published_errors import SCHEMA, ErrorGroup, ErrorInterval, FigureName, PublishedErrors
from kvplan.estimate.speed.queueing.figures import quantile
from published_speeds.predictions import Figure
from published_speeds.scores import FIGURES, Compared, RowScore

LEAST_ROWS: Final = 20
LEAST_SOURCES: Final = 3
LEVEL: Final = 0.9
_TAILS: Final = tuple(n / 200 for n in range(10, -1, -1))


@dataclass(frozen=True, slots=True)
class LogError:
    """log(measured / predicted) of one figure of one row."""

    source: str
    value: float
    combination: str = ""


Errors = dict[tuple[ErrorGroup, str], list[LogError]]


def errors_of(scores: Iterable[RowScore]) -> Errors:
    """By figure and by every group that a row belongs to."""
    found: defaultdict[tuple[ErrorGroup, str], list[LogError]] = defaultdict(list)
    for score in scores:
        for figure in FIGURES:
            if figure in score.figures:
                compared = score.figures[figure]
                value = math.log(compared.measured / compared.predicted.middle)
                error = LogError(score.row.source, value, score.combination)
                for group in score.group.widened():
                    found[group, figure].append(error)
    return dict(found)


def fit_intervals(scores: Iterable[RowScore]) -> PublishedErrors:
    """An interval for every group with enough rows."""
    return PublishedErrors({key: _interval(errors) for key, errors in errors_of(scores).items() if _is_enough(errors)})


def _is_enough(errors: Sequence[LogError]) -> bool:
    return len(errors) >= LEAST_ROWS and len({each.source for each in errors}) >= LEAST_SOURCES


def _interval(errors: Sequence[LogError]) -> ErrorInterval:
    low, high = _quantiles(errors, _tail(errors))
    sources, combinations = ({each.source for each in errors}, {each.combination for each in errors})
    factors = round(math.exp(low), 4), round(math.exp(high), 4)
    return ErrorInterval(*factors, len(errors), len(sources), tuple(sorted(combinations)))


def _tail(errors: Sequence[LogError]) -> float:
    return next((tail for tail in _TAILS if _held_out_share(errors, tail) >= LEVEL), _TAILS[-1])


def _held_out_share(errors: Sequence[LogError], tail: float) -> float:
    """How many rows lie within the quantiles of the other sources' rows."""
    held = 0
    for source in {each.source for each in errors}:
        low, high = _quantiles([each for each in errors if each.source != source], tail)
        held += sum(low <= each.value <= high for each in errors if each.source == source)
    return held / len(errors)


def _quantiles(errors: Sequence[LogError], tail: float) -> tuple[float, float]:
    ordered = sorted(each.value for each in errors)
    return quantile(ordered, tail), quantile(ordered, 1 - tail)


def source_of(score: RowScore) -> str:
    return score.row.source


def held_out(scores: Sequence[RowScore], key: Callable[[RowScore], str] = source_of) -> list[RowScore]:
    """The scores, each with the interval that rows of its ``key`` had no part in; without one as it is."""
    found: list[RowScore] = []
    for group in sorted({key(score) for score in scores}):
        known = fit_intervals(score for score in scores if key(score) != group)
        found += [_with_intervals(score, known) for score in scores if key(score) == group]
    return found


def _with_intervals(score: RowScore, known: PublishedErrors) -> RowScore:
    return replace(score, figures={name: _within(each, score, name, known) for name, each in score.figures.items()})


def _within(compared: Compared, score: RowScore, figure: str, known: PublishedErrors) -> Compared:
    interval = known.interval(score.group, cast(FigureName, figure), score.combination)
    middle = compared.predicted.middle
    if interval is None:
        return compared
    return Compared(compared.measured, Figure(middle * interval.low, middle, middle * interval.high))


def write_intervals(scores: Sequence[RowScore], path: Path) -> None:
    """The file that ships."""
    document = {
        "schema": SCHEMA,
        "source": "tools/published_speeds/speeds.csv, grades A and B, by tools/score_published_speeds.py",
        "level": LEVEL,
        "intervals": fit_intervals(scores).as_json(),
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
