"""How far predicted speeds were from published measurements: profiles/errors/published.json.

Written by ``tools/score_published_speeds.py --write-intervals``, which says how. An interval is a pair of factors:
9 in 10 measurements lie between prediction x ``low`` and prediction x ``high``. It is that of the smallest group with
enough rows: a kind of model on an engine, else the kind on all engines, else the engine, else all rows
(``ErrorGroup.widened``). How long a first token waits is no matter of the kind of model: TTFT has one interval for
SGLang, whose first tokens are further off, and one for all other engines.

The 99th percentile of TPOT has intervals of its own, as the median's held 79 % of published ones: one where it is
predicted near the mean (``NEAR``), and one where few requests are predicted to be much slower, which is less sure; both
are of all kinds of servers. That of TTFT has none: the median's held 94 %, and scored better than one of its own (3.12
beside 3.54, sources held out).

Where a group has no row of the same kernels (a kind of model on a generation of GPUs, with weights in as few bits and
the same kind of recurrent state), its rows say how far a TPOT or a throughput may be off, and not in which direction:
the interval is as wide on both sides. A data sheet is an exception, as nothing is faster than it says. Where it is all
that a TPOT is predicted from, the interval reaches as far as that of all such predictions, too: on AMD's GPUs and GB10
whole kinds of servers were three times as slow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Final, Literal, NamedTuple

from kvplan.paths import read_shipped

SCHEMA: Final = "kvplan.speed_errors/3"
FILE: Final = "errors/published.json"
FigureName = Literal["ttft", "tpot", "throughput"]
TAILS: Final[dict[FigureName, str]] = {"tpot": "tpot_p99"}
"""Figures whose 99th percentile has an interval of its own, and the name that it has in the file."""
NEAR: Final = 1.3
"""Times the mean that a 99th percentile near it is at most; its interval's name ends in ``NEAR_NAME``."""
NEAR_NAME: Final = "_near"
SHEET_NAME: Final = "_sheet"
"""Suffix of the interval of a TPOT that a data sheet predicts."""
_OF_KERNELS: Final[tuple[FigureName, ...]] = ("tpot", "throughput")
"""Figures that are further off, in whichever direction, where nobody measured a server's kernels. Of TTFT 9 in 10 rows
whose kernels no other source has lie in the interval of the others' rows as it is."""


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """What an interval was learned from: None stands for all kinds of model, or all engines.

    kind: "dense", "mixture" or "latent attention" (a mixture that has it).
    """

    kind: str | None
    engine: str | None

    def widened(self) -> tuple[ErrorGroup, ...]:
        """Itself, and the groups that contain it, the next larger first."""
        return (self, ErrorGroup(self.kind, None), ErrorGroup(None, self.engine), ErrorGroup(None, None))


@dataclass(frozen=True, slots=True)
class ServerKind:
    """A server as intervals tell it apart from others. ``generation``: of its GPUs.

    ``format``: of its weights, and its recurrent state, as ``ModelWork.kernel_format`` has them; "" where nobody asked.
    """

    group: ErrorGroup
    generation: str
    format: str = ""

    @property
    def name(self) -> str:
        """``dense, vllm, Hopper``."""
        return f"{self.group.kind}, {self.group.engine}, {self.generation}"

    @property
    def kernels(self) -> str:
        """``mixture, Blackwell, 4 bits``: what decides which kernels run, on any engine."""
        return f"{self.group.kind}, {self.generation}, {self.format}"

    def is_measured_by(self, names: Iterable[str], kernels: Iterable[str]) -> bool:
        """Whether rows of these kernels have its own; where a format was not asked for, servers of these names its
        kind of model on its generation of GPUs."""
        if self.format:
            return self.kernels in kernels
        ends = f"{self.group.kind}, ", f", {self.generation}"
        return any(name.startswith(ends[0]) and name.endswith(ends[1]) for name in names)


def server_kind(
    engine: str, generation: str, *, is_mixture: bool, is_latent: bool, is_first: bool = False, format: str = ""
) -> ServerKind:
    """``engine``: as kvplan or its publisher writes it; kvplan's engine has been published by nobody.

    ``is_first``: vLLM's first engine, another one than that of 0.8.0 and later under the same name.
    """
    name = engine.casefold().replace("-", "").replace("trtllm", "tensorrtllm") + (" v0" if is_first else "")
    kind = "latent attention" if is_latent else "mixture" if is_mixture else "dense"
    return ServerKind(ErrorGroup(kind, name), generation, format)


_TWICE: Final = 2.0
"""The factor from which on an error is told as one; below it is told in percent."""


class Ends(NamedTuple):
    """Factors of a prediction."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ErrorInterval:
    """``low`` and ``high``: factors of a prediction.

    ``num_rows``: published measurements, by ``num_sources``; none where a device's own profile says it. ``measured``:
    (name of a kind of server, rows of it). ``num_alike``: rows of the very kind that was asked for. ``kernels``: those
    that its rows were of (``ServerKind.kernels``). ``tail``: of the 99th percentile, where that was compared;
    ``near_tail``: of one that is at most ``NEAR`` times the mean.
    """

    low: float
    high: float
    num_rows: int = 0
    num_sources: int = 0
    measured: tuple[tuple[str, int], ...] = ()
    num_alike: int = 0
    kernels: tuple[str, ...] = ()
    tail: Ends | None = None
    near_tail: Ends | None = None

    def at(self, statistic: str, times_mean: float = math.inf) -> Ends:
        """Return the factors of the mean or a percentile. Those between median and p99 may be as far off as both.

        ``times_mean``: the predicted p99 by the predicted mean, where both are known.
        """
        own = Ends(self.low, self.high)
        tail = self.near_tail if self.near_tail is not None and times_mean <= NEAR else self.tail
        if tail is None or statistic in ("mean", "p50"):
            return own
        if statistic == "p99":  # no less than the mean, which may be as far off as its own end
            return Ends(tail.low, max(tail.high, own.high / times_mean))
        return Ends(min(own.low, tail.low), max(own.high, tail.high))

    def times(self, low: float, high: float) -> ErrorInterval:
        """Return it with other ends, by factors of its own; those of p99 move with them."""
        tails = (self.tail, self.near_tail)
        tail, near_tail = (None if each is None else Ends(each.low * low, each.high * high) for each in tails)
        return replace(self, low=self.low * low, high=self.high * high, tail=tail, near_tail=near_tail)

    def beyond(self, other: ErrorInterval | None) -> ErrorInterval:
        """Return it with a p99 that is as much further off than the median as that of ``other``."""
        if other is None:
            return self

        def moved(tail: Ends | None) -> Ends | None:
            if tail is None:
                return None
            low, high = min(tail.low / other.low, 1.0), max(tail.high / other.high, 1.0)
            return Ends(self.low * low, self.high * high)

        return replace(self, tail=moved(other.tail), near_tail=moved(other.near_tail))

    def of(self, kind: ServerKind, *, in_any_direction: bool = True) -> ErrorInterval:
        """Return it for a kind of server; as wide on both sides where no row was of its kernels."""
        names = dict(self.measured)
        found = replace(self, num_alike=names.get(kind.name, 0))
        if not in_any_direction or kind.is_measured_by(names, self.kernels):
            return found
        widest = max(1 / self.low, self.high)
        return replace(found, low=1 / widest, high=widest)

    @property
    def factor(self) -> float:
        """The larger of both ends, as a factor."""
        return max(1 / self.low, self.high)

    @property
    def width_text(self) -> str:
        """``15 %``, ``a factor of 2.4``: how far 9 in 10 measurements are from a prediction at most."""
        if self.factor < _TWICE:
            return f"{100 * (self.factor - 1):.0f} %"
        return f"a factor of {self.factor:.2g}"


@dataclass(frozen=True)
class PublishedErrors:
    """All intervals, by group and figure."""

    intervals: Mapping[tuple[ErrorGroup, str], ErrorInterval]

    def interval(self, kind: ServerKind, figure: FigureName, *, in_any_direction: bool = True) -> ErrorInterval | None:
        """Return that of the smallest group of ``kind`` that was measured often enough; None where none was.

        ``in_any_direction``: see ``ErrorInterval.of``; not of data sheets.
        """
        by_sheet = not in_any_direction
        found = self._of_group(kind, figure, in_any_direction=in_any_direction and figure in _OF_KERNELS)
        if found is None or figure not in TAILS:
            return found
        sheet = self._of_group(kind, figure + SHEET_NAME, in_any_direction=False) if by_sheet else None
        if sheet is not None:
            found = replace(found, low=min(found.low, sheet.low), high=max(found.high, sheet.high))
        names = TAILS[figure], TAILS[figure] + NEAR_NAME
        tail, near = (self._of_group(kind, name, in_any_direction=False) for name in names)
        ends = [None if each is None else Ends(each.low, each.high) for each in (tail, near)]
        return replace(found, tail=ends[0], near_tail=ends[1])

    def _of_group(self, kind: ServerKind, figure: str, *, in_any_direction: bool) -> ErrorInterval | None:
        found = next((each for each in kind.group.widened() if (each, figure) in self.intervals), None)
        return None if found is None else self.intervals[found, figure].of(kind, in_any_direction=in_any_direction)

    def as_json(self) -> list[dict[str, Any]]:
        return [
            asdict(group) | {"figure": figure} | _as_record(interval)
            for (group, figure), interval in sorted(self.intervals.items(), key=lambda item: str(item[0]))
        ]

    @staticmethod
    def from_json(records: Iterable[Mapping[str, Any]]) -> PublishedErrors:
        """ValueError for factors that are no interval around a positive prediction."""
        return PublishedErrors(dict(_interval(record) for record in records))


def _as_record(interval: ErrorInterval) -> dict[str, Any]:
    counts = {"num_rows": interval.num_rows, "num_sources": interval.num_sources}
    rows = {"measured": dict(interval.measured), "kernels": list(interval.kernels)}
    return {"low": interval.low, "high": interval.high} | counts | rows


def _interval(record: Mapping[str, Any]) -> tuple[tuple[ErrorGroup, str], ErrorInterval]:
    low, high = float(record["low"]), float(record["high"])
    if not 0 < low <= high < math.inf:
        raise ValueError(f"{low} to {high} is no interval")
    group = ErrorGroup(record["kind"], record["engine"])
    counts = int(record["num_rows"]), int(record["num_sources"])
    measured = tuple(sorted((str(name), int(count)) for name, count in record["measured"].items()))
    kernels = tuple(str(each) for each in record.get("kernels", ()))
    return (group, record["figure"]), ErrorInterval(low, high, *counts, measured, kernels=kernels)


@cache
def published_errors() -> PublishedErrors:
    """Return the errors that ship. KvplanError where the file is damaged."""
    return read_shipped(FILE, _published)


def _published(document: Mapping[str, Any]) -> PublishedErrors:
    if document["schema"] != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    return PublishedErrors.from_json(document["intervals"])
