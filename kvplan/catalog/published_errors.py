"""How far predicted speeds were from published measurements: profiles/errors/published.json.

Written by ``tools/score_published_speeds.py --write-intervals``, which says how. An interval is a pair of factors:
9 in 10 measurements lie between prediction x ``low`` and prediction x ``high``. Where a group has no row of a kind of
model on a generation of GPUs, its rows say how far such predictions may be off, and not in which direction: the
interval is as wide on both sides. A data sheet is an exception, as nothing is faster than it says.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from kvplan.errors import KvplanError
from kvplan.paths import profiles_dir

SCHEMA: Final = "kvplan.speed_errors/1"
FILE: Final = Path("errors") / "published.json"
FigureName = Literal["ttft", "tpot", "throughput"]


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """What an interval was learned from: None stands for all engines, all kinds of model, or all origins.

    origin: where the predicted step times came from. kind: "dense" or "mixture".
    """

    origin: str | None
    engine: str | None
    kind: str | None

    def widened(self) -> tuple[ErrorGroup, ...]:
        """Itself, and the groups that contain it, the next larger first."""
        of_all_engines = ErrorGroup(self.origin, None, self.kind)
        return (self, of_all_engines, ErrorGroup(self.origin, None, None), ErrorGroup(None, None, None))


def error_group(origin: str, engine: str, is_mixture: bool, *, is_first: bool = False) -> ErrorGroup:
    """``engine``: as kvplan or its publisher writes it; kvplan's engine has been published by nobody.

    ``is_first``: vLLM's first engine, another one than that of 0.8.0 and later under the same name.
    """
    name = engine.casefold().replace("-", "").replace("trtllm", "tensorrtllm") + (" v0" if is_first else "")
    return ErrorGroup(origin, name, "mixture" if is_mixture else "dense")


def combination(architecture: str, *, is_mixture: bool, is_latent: bool) -> str:
    """A kind of model on a generation of GPUs."""
    kind = "latent attention" if is_latent else "mixture" if is_mixture else "dense"
    return f"{kind}, {architecture}"


@dataclass(frozen=True, slots=True)
class ErrorInterval:
    """``low`` and ``high``: factors of a prediction.

    ``num_rows``: published measurements, by ``num_sources``; none where a device's own profile says it.
    ``measured``: the combinations among them, as ``combination`` names them.
    """

    low: float
    high: float
    num_rows: int = 0
    num_sources: int = 0
    measured: tuple[str, ...] = ()

    def of(self, combination: str | None) -> ErrorInterval:
        """As wide on both sides where no row was of ``combination``; None: of one that was measured."""
        if combination is None or combination in self.measured:
            return self
        widest = max(1 / self.low, self.high)
        return replace(self, low=1 / widest, high=widest)


@dataclass(frozen=True)
class PublishedErrors:
    """All intervals, by group and figure."""

    intervals: Mapping[tuple[ErrorGroup, str], ErrorInterval]

    def interval(self, group: ErrorGroup, figure: FigureName, combination: str | None = None) -> ErrorInterval | None:
        """Of the smallest group that contains ``group`` and was measured often enough; None where none was.

        ``combination``: for which, see ``ErrorInterval.of``.
        """
        found = next((each for each in group.widened() if (each, figure) in self.intervals), None)
        if found is None:
            return None
        interval = self.intervals[found, figure]
        return interval if group.origin == "roofline" else interval.of(combination)

    def as_json(self) -> list[dict[str, Any]]:
        return [
            asdict(group) | {"figure": figure} | asdict(interval)
            for (group, figure), interval in sorted(self.intervals.items(), key=lambda item: str(item[0]))
        ]

    @staticmethod
    def from_json(records: Iterable[Mapping[str, Any]]) -> PublishedErrors:
        """ValueError for factors that are no interval around a positive prediction."""
        return PublishedErrors(dict(_interval(record) for record in records))


def _interval(record: Mapping[str, Any]) -> tuple[tuple[ErrorGroup, str], ErrorInterval]:
    low, high = float(record["low"]), float(record["high"])
    if not 0 < low <= high < math.inf:
        raise ValueError(f"{low} to {high} is no interval")
    group = ErrorGroup(record["origin"], record["engine"], record["kind"])
    counts = int(record["num_rows"]), int(record["num_sources"])
    return (group, record["figure"]), ErrorInterval(low, high, *counts, tuple(record.get("measured", ())))


@cache
def published_errors() -> PublishedErrors:
    """Those that ship. KvplanError where the file is damaged."""
    path = profiles_dir() / FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        return PublishedErrors.from_json(document["intervals"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise KvplanError(f"{path} cannot be used: {error}.", hint="reinstall kvplan") from error
