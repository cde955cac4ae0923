"""What a check says of each family of kernels, as data and as text that can be stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from kvplan_engine.kernel_checks.table import FAMILIES


@dataclass(frozen=True, slots=True)
class Verdict:
    """family: one of FAMILIES. passed: its results are torch's. is_used: and it runs. why: what decided that.

    error, tolerance: of its results, the largest; None where it gave none. micros, twin_micros: of a launch of it and
    of its twin, where the two were timed.
    """

    family: str
    passed: bool
    is_used: bool
    why: str = ""
    error: float | None = None
    tolerance: float | None = None
    micros: float | None = None
    twin_micros: float | None = None

    def sentence(self) -> str:
        """Sentence on a family that failed: what, how, and what stands in for it."""
        known = FAMILIES[self.family]
        instead = "nothing can stand in for it" if known.is_needed else f"{known.twin} stands in for it"
        return f"{self.family} ({known.what}) gives wrong results here: {self.why}; {instead}"


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Verdicts on a model's kernels on a device. seconds: that the checks took. is_cached: they were read, not run."""

    of: tuple[Verdict, ...]
    seconds: float = 0.0
    is_cached: bool = False

    @property
    def avoided(self) -> frozenset[str]:
        """Families that are not used."""
        return frozenset(each.family for each in self.of if not each.is_used)

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """Verdicts on families whose results are wrong."""
        return tuple(each for each in self.of if not each.passed)

    def uses(self, family: str) -> bool:
        """Whether a family was checked and is used."""
        return any(each.family == family and each.is_used for each in self.of)

    def passes(self, family: str) -> bool:
        """Whether a family was checked and is right."""
        return any(each.family == family and each.passed for each in self.of)

    def as_json(self) -> dict[str, Any]:
        """Return the verdicts for a file."""
        return {"seconds": self.seconds, "verdicts": [asdict(each) for each in self.of]}


NO_VERDICTS = Verdicts(())
"""Of kernels that nobody checked."""


def verdicts_from_json(text: Any) -> Verdicts | None:
    """What ``as_json`` gave; None for anything else."""
    if not isinstance(text, Mapping) or not isinstance(text.get("verdicts"), list):
        return None
    names = {each.name for each in fields(Verdict)}
    found = []
    for row in text["verdicts"]:
        if not isinstance(row, Mapping) or set(row) != names or row["family"] not in FAMILIES:
            return None
        if not all(isinstance(row[name], bool) for name in ("passed", "is_used")):
            return None
        found.append(Verdict(**row))
    seconds = text.get("seconds")
    return Verdicts(tuple(found), seconds if isinstance(seconds, float) else 0.0, is_cached=True)
