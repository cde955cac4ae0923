"""How far predicted speeds were from published measurements: profiles/errors/published.json.

Written by ``tools/score_published_speeds.py --write-intervals``, which says how. An interval is a pair of factors:
9 in 10 measurements lie between prediction x ``low`` and prediction x ``high``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True, slots=True)
class ErrorInterval:
    """``low`` and ``high``: factors of a prediction.

    ``num_rows``: published measurements, by ``num_sources``; none where a device's own profile says it.
    """

    low: float
    high: float
    num_rows: int = 0
    num_sources: int = 0


@dataclass(frozen=True)
class PublishedErrors:
    """All intervals, by group and figure."""

    intervals: Mapping[tuple[ErrorGroup, str], ErrorInterval]

    def interval(self, group: ErrorGroup, figure: FigureName) -> ErrorInterval | None:
        """Of the smallest group that contains ``group`` and was measured often enough; None where none was."""
        found = (self.intervals.get((each, figure)) for each in group.widened())
        return next((each for each in found if each is not None), None)

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
    return (group, record["figure"]), ErrorInterval(low, high, int(record["num_rows"]), int(record["num_sources"]))


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
