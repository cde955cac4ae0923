"""What a deployment has to give: the service level that was asked for, or a readable speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvplan.planner.question.slo import Slo

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
