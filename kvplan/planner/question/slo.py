"""Service levels: upper bounds on latency. Written after ``--slo`` in milliseconds, in seconds everywhere else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvplan.errors import UsageError


@dataclass(frozen=True, slots=True)
class Slo:
    """Upper bounds in seconds; None: not asked for."""

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    e2el_seconds: float | None = None

    @property
    def is_empty(self) -> bool:
        return self.ttft_seconds is None and self.tpot_seconds is None and self.e2el_seconds is None


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

SLO_FIELDS = {"ttft": "ttft_seconds", "tpot": "tpot_seconds", "e2el": "e2el_seconds"}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)(ms|s)?")


def parse_slo(texts: Sequence[str]) -> Slo:
    """``["ttft:500", "tpot:50ms"]`` or ``["mlperf:llama3.1-8b"]``; a plain number is milliseconds. UsageError else."""
    found = Slo()
    for text in texts:
        name, colon, value = text.strip().lower().partition(":")
        if name == "mlperf" and colon:
            found = _mlperf(value)
            continue
        match = _NUMBER.fullmatch(value)
        if name not in SLO_FIELDS or match is None or float(match.group(1)) <= 0:
            raise UsageError(f"'{text}' is not a service level.", hint="write it like ttft:500 tpot:50 e2el:5000 (ms)")
        seconds = float(match.group(1)) / (1 if match.group(2) == "s" else 1000)
        found = replace(found, **{SLO_FIELDS[name]: seconds})
    return found


def _mlperf(name: str) -> Slo:
    if name not in MLPERF:
        raise UsageError(f"Unknown MLPerf scenario '{name}'.", hint="one of " + ", ".join(sorted(MLPERF)))
    ttft, tpot = MLPERF[name]
    return Slo(ttft / 1000, tpot / 1000)
