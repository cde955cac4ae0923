"""How many requests of a load may fail, and what is said of those that did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvplan.errors import UsageError
from kvplan.load.run import LoadRun

_MOST_REASONS: Final = 3
_NO_REASON: Final = "no token came"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """At most ``number`` requests, or with ``is_share`` that share of them, may fail."""

    number: float = 0
    is_share: bool = False

    @staticmethod
    def parse(text: str) -> Tolerance:
        """``3`` or ``1%``. UsageError otherwise."""
        is_share = text.endswith("%")
        try:
            number = float(text.rstrip("%")) / 100 if is_share else int(text)
        except ValueError:
            number = -1
        if not (0 <= number <= 1 if is_share else number >= 0):
            raise UsageError(f"--max-failed '{text}' is no number of requests.", hint="for example 3, or 1%")
        return Tolerance(number, is_share)

    def allows(self, num_failed: int, num_requests: int) -> bool:
        return num_failed <= (self.number * num_requests if self.is_share else self.number)


@dataclass(frozen=True, slots=True)
class Failures:
    """What failed in all measured parts of a load. reasons: how often each."""

    num_failed: int
    num_requests: int
    reasons: Counter[str]

    def sentence(self) -> str:
        """``3 of 200 requests failed: 2 x no end within 6 s, 1 x 500: busy``; the rarest reasons are counted only."""
        named = self.reasons.most_common(_MOST_REASONS)
        parts = [f"{count:,} x {reason}" for reason, count in named]
        others = self.num_failed - sum(count for _, count in named)
        parts += [f"{others:,} x something else"] if others else []
        return f"{self.num_failed:,} of {self.num_requests:,} requests failed: {', '.join(parts)}"


def failures_of(runs: Sequence[LoadRun]) -> Failures:
    """Count the failures of all runs together, warm-ups left out."""
    measured = [record for run in runs for record in run.measured.measured]
    failed = [record.error or _NO_REASON for record in measured if not record.is_served]
    return Failures(len(failed), len(measured), Counter(failed))
