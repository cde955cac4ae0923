"""A trace stretched over a day whose load rises and falls, as a file says.

The trace is played over and over until the day is full. At a factor of 0.4 two in five of its requests are kept, drawn
at random; at 2.4 each comes twice, and two in five a third time. What comes again, in a later round or as a copy, has
tokens of its own: it finds what its own round and copy sent before, and nothing of the others. Copies are sent up to a
minute later than the request that they are of, so that the day is not a day of pairs.
"""

from __future__ import annotations

import bisect
import csv
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from kvplan.errors import KvplanError
from kvplan.files import open_file
from kvplan.fleet.requests import FleetRequest, TokenRun, renumbered

DAY_SECONDS: Final = 86_400.0
MOST_REQUESTS: Final = 400_000
_APART_SECONDS: Final = 60.0
_MOST_FACTOR: Final = 1000.0
_MOST_LINES: Final = 100_000
_HINT: Final = "give CSV with columns hour,factor or time,factor: 9,1.4 or 09:30,1.4, from which on the factor holds"


class ShapePoint(NamedTuple):
    """From ``seconds`` of the day on the trace's rate times ``factor``."""

    seconds: float
    factor: float


@dataclass(frozen=True, slots=True)
class LoadShape:
    """Factors of a trace's rate over a day, in order of time; the first holds from midnight on."""

    points: tuple[ShapePoint, ...]

    def factor(self, seconds: float) -> float:
        """At that time of the day."""
        place = bisect.bisect_right(self.points, seconds, key=lambda point: point.seconds)
        return self.points[max(place - 1, 0)].factor


def read_shape(path: Path) -> LoadShape:
    """Read a file of factors. KvplanError with the line that cannot be used."""
    points: list[ShapePoint] = []
    try:
        with open_file(path) as file:
            text = file.read(_MOST_LINES * 80).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise KvplanError(f"The load shape {path} is not text in UTF-8.", hint=_HINT) from error
    rows = csv.DictReader(text.splitlines())
    names = {name.strip().lower(): name for name in rows.fieldnames or () if name}
    clock = "hour" if "hour" in names else "time"
    if clock not in names or "factor" not in names:
        raise KvplanError(f"The load shape {path} has no columns hour (or time) and factor.", hint=_HINT)
    for row in rows:
        place = f"Line {rows.line_num} of the load shape {path}"
        points.append(_point(place, clock, row[names[clock]], row[names["factor"]]))
        if len(points) > 1 and points[-1].seconds <= points[-2].seconds:
            raise KvplanError(f"{place} is not later than the one before it.", hint=_HINT)
    if not any(point.factor for point in points):
        raise KvplanError(f"The load shape {path} has no factor above 0.", hint=_HINT)
    return LoadShape(tuple(points))


def _point(place: str, clock: str, time: str | None, factor: str | None) -> ShapePoint:
    try:
        seconds, number = _seconds(clock, time or ""), float(factor or "")
    except ValueError as error:
        raise KvplanError(f"{place} is malformed: {time!r} and {factor!r}.", hint=_HINT) from error
    if not 0 <= seconds < DAY_SECONDS:
        raise KvplanError(f"{place} is not within a day: {time}.", hint=_HINT)
    if not 0 <= number <= _MOST_FACTOR:
        raise KvplanError(f"{place} has a factor of {number:g}; it must be from 0 to {_MOST_FACTOR:g}.", hint=_HINT)
    return ShapePoint(seconds, number)


def _seconds(clock: str, text: str) -> float:
    """``9`` or ``9.5`` of hours; ``09:30`` or ``09:30:15`` of the clock."""
    if ":" not in text:
        return float(text) * (3600.0 if clock == "hour" else 1.0)
    parts = [float(part) for part in text.split(":")]
    if len(parts) > 3 or any(part < 0 or part >= 60 for part in parts[1:]):
        raise ValueError(text)
    return sum(part * scale for part, scale in zip(parts, (3600.0, 60.0, 1.0), strict=False))


def stretched(requests: Sequence[FleetRequest], shape: LoadShape) -> tuple[FleetRequest, ...]:
    """Return a day of ``requests``. KvplanError where that are more than can be played."""
    last = requests[-1].sent
    span = max(last + last / max(len(requests) - 1, 1), 1.0)
    rounds = int(DAY_SECONDS // span) + 1
    wanted = sum(_mean_factor(shape, hour) for hour in range(24)) / 24 * len(requests) * DAY_SECONDS / span
    if wanted > MOST_REQUESTS:
        raise KvplanError(
            f"A day of this trace has {wanted:,.0f} requests, more than the {MOST_REQUESTS:,} that are played.",
            hint=f"--sample {int(len(requests) * MOST_REQUESTS / wanted)} takes so many requests of the trace, and "
            "that share of the load",
        )
    rng = random.Random(0)
    found: list[FleetRequest] = []
    keys = 1 + max((run.key for each in requests for run in each.runs), default=0)
    for number in range(rounds):
        found += _round(requests, shape, rng, number * span, number, keys, len(found))
    return renumbered(tuple(found))


def _mean_factor(shape: LoadShape, hour: int) -> float:
    return sum(shape.factor(3600.0 * hour + 60.0 * minute) for minute in range(60)) / 60


def _round(
    requests: Sequence[FleetRequest],
    shape: LoadShape,
    rng: random.Random,
    begin: float,
    number: int,
    keys: int,
    first: int,
) -> Iterator[FleetRequest]:
    """One time through the trace, from ``begin`` of the day on; numbers from ``first`` on."""
    taken: dict[tuple[int, int], int] = {}
    for each in requests:
        sent = begin + each.sent
        if sent >= DAY_SECONDS:
            return
        factor = shape.factor(sent)
        for copy in range(int(factor) + (rng.random() < factor % 1)):
            later = rng.uniform(0.0, _APART_SECONDS) if copy else 0.0
            offset = (number * int(_MOST_FACTOR + 1) + copy) * keys
            after = None if each.after is None else taken.get((each.after, copy))
            taken[each.number, copy] = first
            yield _moved(each, first, min(sent + later, DAY_SECONDS - 1e-3), offset, after)
            first += 1


def _moved(each: FleetRequest, number: int, sent: float, offset: int, after: int | None) -> FleetRequest:
    runs = tuple(TokenRun(run.key + offset, run.end) for run in each.runs) if offset else each.runs
    answer = None if each.answer_key is None else each.answer_key + offset
    return replace(each, number=number, sent=sent, runs=runs, answer_key=answer, after=after)
