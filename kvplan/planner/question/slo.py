"""Service levels: upper bounds on latency. Written after ``--slo`` in milliseconds, in seconds everywhere else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

from kvplan.errors import UsageError
from kvplan.estimate.speed.queueing.figures import Statistic


@dataclass(frozen=True, slots=True)
class Slo:
    """Upper bounds in seconds; None: not asked for. ``ttft_of`` and its like: the statistic that each bounds."""

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    e2el_seconds: float | None = None
    ttft_of: Statistic = "mean"
    tpot_of: Statistic = "mean"
    e2el_of: Statistic = "mean"

    @property
    def is_empty(self) -> bool:
        return not self.bounds()

    def of_averages(self) -> Slo:
        """The same bounds, of averages."""
        return replace(self, ttft_of="mean", tpot_of="mean", e2el_of="mean")

    def with_bound(self, bound: Bound) -> Slo:
        """Return it with the bound in place of what was asked of the same objective."""
        changed: dict[str, Any] = {SLO_FIELDS[bound.name]: bound.seconds, f"{bound.name}_of": bound.statistic}
        return replace(self, **changed)

    @lru_cache(maxsize=64)  # noqa: B019 - a plan asks it of one level tens of thousands of times
    def bounds(self) -> tuple[Bound, ...]:
        """Bounds that were asked for, in the order of ``SLO_FIELDS``."""
        found = ((name, getattr(self, field), getattr(self, f"{name}_of")) for name, field in SLO_FIELDS.items())
        return tuple(Bound(name, seconds, statistic) for name, seconds, statistic in found if seconds is not None)


class Bound(NamedTuple):
    """One objective: ``seconds`` at most, by ``statistic``."""

    name: str
    seconds: float
    statistic: Statistic

    @property
    def word(self) -> str:
        """The word after ``--slo``, before the colon: ``ttft``, ``p99_ttft``."""
        return self.name if self.statistic == "mean" else f"{self.statistic}_{self.name}"

    @property
    def text(self) -> str:
        """``average TTFT within 500 ms``"""
        statistic = "average" if self.statistic == "mean" else self.statistic
        return f"{statistic} {self.name.upper()} within {self.seconds * 1000:,g} ms"


MLPERF: dict[str, tuple[float, float]] = {
    "llama3.1-8b": (2000, 100),
    "llama3.1-8b-interactive": (500, 30),
    "llama2-70b": (2000, 200),
    "llama2-70b-interactive": (450, 40),
    "mixtral-8x7b": (2000, 200),
    "llama3.1-405b": (6000, 175),
    "deepseek-r1": (2000, 80),
}
"""MLPerf Inference's server scenarios as published: p99 of time to first token and per output token, milliseconds."""

SLO_FIELDS: Final = {"ttft": "ttft_seconds", "tpot": "tpot_seconds", "e2el": "e2el_seconds"}
_EXAMPLE: Final = "write it like ttft:500 p99_tpot:50 e2el:5s, or 'p95_ttft<1s'; a plain number is milliseconds"
_BOUND: Final = re.compile(
    r"(?:(?P<statistic>mean|avg|p50|p90|p95|p99)_)?(?P<name>ttft|tpot|e2el)(?::|<=?|=|\u2264)"
    r"(?P<number>\d+(?:\.\d+)?)(?P<unit>ms|s)?"
)
_AROUND_SIGN: Final = re.compile(r"\s*(:|<=?|=|\u2264)\s*")


def split_slo(texts: Sequence[str]) -> list[str]:
    """``["TTFT < 1s, tpot:50"]`` -> ``TTFT<1s``, ``tpot:50``: one word for each bound."""
    return [word for text in texts for word in _AROUND_SIGN.sub(r"\1", text).replace(",", " ").split()]


def parse_slo(texts: Sequence[str]) -> Slo:
    """``["ttft:500", "p99_tpot:50ms", "TTFT<1s"]`` or ``["mlperf:llama3.1-8b"]``; a plain number is milliseconds.

    A bound without a percentile is one of the average. UsageError for anything else, and for two bounds of one
    objective: only one could count.
    """
    found, given = Slo(), dict[str, Bound]()
    for text in texts:
        for bound in _bounds(text):
            if given.setdefault(bound.name, bound) != bound:
                raise UsageError(
                    f"--slo has two bounds on {bound.name.upper()}, and takes one.",
                    hint="give the one that matters most, and look up the other in the answer",
                )
            found = found.with_bound(bound)
    return found


def _bounds(text: str) -> Sequence[Bound]:
    """What one word asks for: a bound, or those of an MLPerf scenario."""
    word = text.strip().lower()
    if word.startswith("mlperf:"):
        return tuple(_mlperf(word.removeprefix("mlperf:")).bounds())
    match = _BOUND.fullmatch(word)
    if match is None or float(match["number"]) <= 0:
        raise UsageError(f"'{text}' is not a service level.", hint=_EXAMPLE)
    seconds = float(match["number"]) / (1 if match["unit"] == "s" else 1000)
    statistic = match["statistic"] if (match["statistic"] or "").startswith("p") else "mean"
    return (Bound(match["name"], seconds, cast("Statistic", statistic)),)


def measured_bounds(texts: Sequence[str]) -> dict[str, float]:
    """Seconds by objective, for a load that is measured: there the 99th percentile of each is within its bound.

    UsageError for a bound of another percentile.
    """
    slo = parse_slo(split_slo(texts))
    other = next((bound for bound in slo.bounds() if bound.statistic not in ("mean", "p99")), None)
    if other is not None:
        what = "the median" if other.statistic == "p50" else f"the {other.statistic[1:]}th"
        raise UsageError(
            f"A load that is measured is judged by the 99th percentile of each objective, not by {what}.",
            hint=f"leave {other.statistic}_ out; rows have medians too",
        )
    return {bound.name: bound.seconds for bound in slo.bounds()}


def _mlperf(name: str) -> Slo:
    if name not in MLPERF:
        raise UsageError(f"Unknown MLPerf scenario '{name}'.", hint="one of " + ", ".join(sorted(MLPERF)))
    ttft, tpot = MLPERF[name]
    return Slo(ttft / 1000, tpot / 1000, ttft_of="p99", tpot_of="p99")


DEFAULT_CONFIDENCE: Final = 0.75
READABLE: Final = Slo(ttft_seconds=10.0, tpot_seconds=0.1, ttft_of="p50", tpot_of="p50")
"""Without a service level: an answer that begins within 10 s and is written at 10 tokens/s, which is faster than most
people read (about 4 words a second, Brysbaert 2019, doi:10.1016/j.jml.2019.104047; a word is 1.3 tokens or so)."""


@dataclass(frozen=True, slots=True)
class Goal:
    """``slo`` with at least ``confidence``, from 0 to 1. ``is_asked``: by the user; a readable speed otherwise."""

    slo: Slo
    confidence: float
    is_asked: bool

    @staticmethod
    def of(slo: Slo, confidence: float) -> Goal:
        """Goal; of a readable speed the middle of what is expected decides, and confidence is of the KV cache."""
        return Goal(READABLE, confidence, False) if slo.is_empty else Goal(slo, confidence, True)

    @property
    def text(self) -> str:
        """``average TTFT within 500 ms and p99 TPOT within 50 ms``"""
        return " and ".join(bound.text for bound in self.slo.bounds())
