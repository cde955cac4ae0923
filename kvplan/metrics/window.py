"""What happened at a server between two readings: counters and histograms subtracted, rates over the time between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from kvplan.metrics.histograms import Histogram
from kvplan.metrics.reading import COUNTERS, HISTOGRAMS, Counted, ServerReading, histogram_json


@dataclass(frozen=True, slots=True)
class WindowFigures(Counted):
    """The window between two readings. None: the server does not tell, or (restarted) it began to count anew.

    Histograms hold what was observed within the window; throughputs are per second of it.
    """

    seconds: float
    restarted: bool = False

    @property
    def prefix_hit_rate(self) -> float | None:
        """Prompt tokens (blocks) found in the prefix cache over those looked up, 0 to 1; None where none was."""
        if self.prefix_cache_hits is None or not self.prefix_cache_queries:
            return None
        return self.prefix_cache_hits / self.prefix_cache_queries

    @property
    def acceptance_rate(self) -> float | None:
        """Draft tokens accepted over those verified, 0 to 1; None where none was."""
        if self.num_accepted_tokens is None or not self.num_draft_tokens:
            return None
        return self.num_accepted_tokens / self.num_draft_tokens

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens of a verification, the one behind the accepted drafts included; None where none was."""
        if self.num_accepted_tokens is None or not self.num_drafts:
            return None
        return 1 + self.num_accepted_tokens / self.num_drafts

    @property
    def output_throughput(self) -> float | None:
        """Generated tokens per second."""
        return self._rate(self.generation_tokens)

    @property
    def prompt_throughput(self) -> float | None:
        """Prompt tokens per second, as the engine counts them (vLLM and SGLang: with those found in the cache)."""
        return self._rate(self.prompt_tokens)

    @property
    def request_throughput(self) -> float | None:
        """Requests finished per second, for whatever reason."""
        return self._rate(sum(self.num_finished.values())) if self.num_finished else None

    def as_json(self) -> dict[str, Any]:
        """Counts, rates, and histograms as mean, count and percentiles."""
        plain = {name: value for name, value in asdict(self).items() if name not in HISTOGRAMS}
        histograms = {name: getattr(self, name) for name in HISTOGRAMS}
        return {
            **plain,
            **{name: getattr(self, name) for name in _RATES},
            **{name: None if found is None else histogram_json(found) for name, found in histograms.items()},
        }

    def _rate(self, amount: float | None) -> float | None:
        return None if amount is None or self.seconds <= 0 else amount / self.seconds


def difference(before: ServerReading, after: ServerReading) -> WindowFigures:
    """The window from ``before`` to ``after``, two readings of one server."""
    seconds = after.seconds - before.seconds
    counters = {name: _grown(getattr(before, name), getattr(after, name)) for name in COUNTERS}
    if _RESTARTED in counters.values():
        return WindowFigures(seconds, restarted=True)
    histograms = {name: _observed(getattr(before, name), getattr(after, name)) for name in HISTOGRAMS}
    labelled = {name: _grown_by_label(getattr(before, name), getattr(after, name)) for name in _LABELLED}
    return WindowFigures(seconds, **labelled, **counters, **histograms)  # type: ignore[arg-type]


def _grown_by_label(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {label: max(0.0, count - before.get(label, 0.0)) for label, count in after.items()}


_LABELLED: Final = ("num_finished", "accepted_per_position")
_RATES: Final = (
    "prefix_hit_rate", "acceptance_rate", "mean_acceptance_length", "output_throughput", "prompt_throughput",
    "request_throughput",
)  # fmt: skip
_RESTARTED: Final = -1.0


def _grown(before: float | None, after: float | None) -> float | None:
    """How much a counter grew; a counter with labels appears with its first event, so before that it was 0."""
    if after is None:
        return None
    grown = after - (before or 0.0)
    return _RESTARTED if grown < 0 else grown


def _observed(before: Histogram | None, after: Histogram | None) -> Histogram | None:
    return after if before is None or after is None else after.since(before)
