"""How far predicted start-ups were from published ones, and which start-ups that was learned from.

``profiles/errors/startups.json`` is written by ``python tools/score_vllm_startups.py --write-ranges``, which says how.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from typing import Any, Final

from kvplan.paths import read_shipped

SCHEMA: Final = "kvplan.startup_errors/1"
FILE: Final = "errors/startups.json"


@dataclass(frozen=True, slots=True)
class ComparedStartups:
    """``count`` start-ups from one source that are of the same kind in every aspect.

    end_to_end: compared from the settings to the pool. shows_layout: the log has the memory and the tokens it holds.
    """

    source: str
    count: int
    end_to_end: bool
    shows_layout: bool
    kinds: Mapping[str, str]


@dataclass(frozen=True, eq=False)  # one object for each set, which answers are remembered by
class Evidence:
    """The start-ups that predictions were compared with."""

    startups: tuple[ComparedStartups, ...]

    def alike(self, kinds: Mapping[str, str]) -> Evidence:
        """Return those of the same kind in each aspect of ``kinds``."""
        wanted = kinds.items()
        return Evidence(tuple(each for each in self.startups if wanted <= each.kinds.items()))

    def without(self, source: str) -> Evidence:
        """Return those of all other sources."""
        return Evidence(tuple(each for each in self.startups if each.source != source))

    def less_one(self, source: str, kinds: Mapping[str, str]) -> Evidence:
        """Return all but one start-up of ``source`` that is of these kinds."""
        found = next(each for each in self.startups if each.source == source and each.kinds == kinds)
        others = tuple(each for each in self.startups if each is not found)
        return Evidence((*others, replace(found, count=found.count - 1)) if found.count > 1 else others)

    @cached_property
    def end_to_end(self) -> Evidence:
        """Start-ups that were compared from their settings on."""
        return Evidence(tuple(each for each in self.startups if each.end_to_end))

    @cached_property
    def of_layouts(self) -> Evidence:
        """Start-ups that show how many tokens their memory holds."""
        return Evidence(tuple(each for each in self.startups if each.shows_layout))

    @property
    def num_startups(self) -> int:
        return sum(each.count for each in self.startups)

    @property
    def num_sources(self) -> int:
        return len({each.source for each in self.startups})


@dataclass(frozen=True, slots=True)
class StartupErrors:
    """Spreads by cause, and what a combined spread is multiplied by to hold 9 of 10 start-ups.

    ``factors`` are by group (kvplan.estimate.vllm.ranges). ``layout_factor``: by what the tokens were off, either way,
    where nobody had compared the layout of such a cache.
    """

    spreads: Mapping[str, float]
    factors: Mapping[str, float]
    layout_factor: float
    evidence: Evidence

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "spreads": dict(self.spreads),
            "factors": dict(self.factors),
            "layout_factor": self.layout_factor,
            "startups": [asdict(each) for each in self.evidence.startups],
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> StartupErrors:
        """Read ``as_json``; KeyError, TypeError or ValueError for anything else."""
        if document["schema"] != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        return StartupErrors(
            {str(cause): float(spread) for cause, spread in document["spreads"].items()},
            {str(group): float(factor) for group, factor in document["factors"].items()},
            float(document["layout_factor"]),
            Evidence(tuple(_compared(document["startups"]))),
        )


def _compared(records: Iterable[Mapping[str, Any]]) -> Iterable[ComparedStartups]:
    for record in records:
        kinds = {str(aspect): str(kind) for aspect, kind in record["kinds"].items()}
        shown = bool(record["end_to_end"]), bool(record["shows_layout"])
        yield ComparedStartups(str(record["source"]), int(record["count"]), *shown, kinds)


@cache
def startup_errors() -> StartupErrors:
    """Return those that ship. KvplanError where the file is damaged."""
    return read_shipped(FILE, StartupErrors.from_json)
