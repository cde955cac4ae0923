"""Figures of a play, by the definitions of ``vllm bench serve``. Seconds; times count from sending."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol


class RequestTimes(Protocol):
    """What a play asks of a request, and what it notes of it: as ``PlayedRequest`` has them."""

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def num_output_tokens(self) -> int: ...

    sent: float
    first: float
    last: float
    in_stages: float


@dataclass(slots=True, eq=False)
class PlayedRequest:
    """One request: lengths in tokens, and when it was sent, got its first token and its last one.

    in_stages: seconds that both are later, as its prompt passed the stages of a pipeline after the step that read it.
    """

    num_prompt_tokens: int
    num_output_tokens: int
    sent: float
    first: float = 0.0
    last: float = 0.0
    in_stages: float = 0.0

    @property
    def ttft_seconds(self) -> float:
        return self.first + self.in_stages - self.sent

    @property
    def e2el_seconds(self) -> float:
        return self.last + self.in_stages - self.sent

    @property
    def tpot_seconds(self) -> float | None:
        """None for an answer of one token."""
        tokens = self.num_output_tokens
        return None if tokens < 2 else (self.last - self.first) / (tokens - 1)


Statistic = Literal["mean", "p50", "p90", "p95", "p99"]
"""What a bound of a service level is compared with: the average over all requests, or a percentile."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """The mean and the percentiles of one figure over the requests."""

    mean: float
    median: float
    p90: float
    p95: float
    p99: float

    @staticmethod
    def of(values: Sequence[float]) -> Distribution:
        """``values`` is not empty."""
        ordered = sorted(values)
        return Distribution(
            sum(ordered) / len(ordered), *(quantile(ordered, share) for share in (0.5, 0.9, 0.95, 0.99))
        )

    def at(self, statistic: Statistic) -> float:
        """Return the mean or the percentile that a bound names."""
        return float(getattr(self, "median" if statistic == "p50" else statistic))

    def times(self, factor: float) -> Distribution:
        return Distribution(*(factor * each for each in (self.mean, self.median, self.p90, self.p95, self.p99)))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Interpolated between neighbours, as numpy does."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True, slots=True)
class PlayedFigures:
    """``tpot``: None where no answer has two tokens. Throughputs are per second, from the first sending on."""

    ttft: Distribution
    tpot: Distribution | None
    e2el: Distribution
    output_throughput: float
    request_throughput: float
    seconds: float
    num_preemptions: int
    max_running: int


def of_groups(figures: PlayedFigures, count: int) -> PlayedFigures:
    """Return the figures of ``count`` groups, from one that was played."""
    return replace(
        figures,
        output_throughput=count * figures.output_throughput,
        request_throughput=count * figures.request_throughput,
        num_preemptions=count * figures.num_preemptions,
        max_running=count * figures.max_running,
    )


def played_figures(requests: Sequence[PlayedRequest], num_preemptions: int, max_running: int) -> PlayedFigures:
    """Figures of one or more requests that all ended. Throughputs count from the first sending to the last end."""
    seconds = max(each.last for each in requests) - min(each.sent for each in requests)
    tpots = [found for each in requests if (found := each.tpot_seconds) is not None]
    return PlayedFigures(
        ttft=Distribution.of([each.ttft_seconds for each in requests]),
        tpot=Distribution.of(tpots) if tpots else None,
        e2el=Distribution.of([each.e2el_seconds for each in requests]),
        output_throughput=sum(each.num_output_tokens for each in requests) / seconds,
        request_throughput=len(requests) / seconds,
        seconds=seconds,
        num_preemptions=num_preemptions,
        max_running=max_running,
    )
