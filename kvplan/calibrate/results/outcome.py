"""What readers make of benchmark files: loads that were served, and exact batches that were timed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from kvplan.calibrate.results.served import ServedDeployment
from kvplan.errors import KvplanError
from kvplan.workload.requests import RequestSpec


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """What a client measured. Seconds; tokens per second. None: the file does not say.

    duration: from the first request to the last token. TPOT as vLLM defines it: (latency - TTFT) / (tokens - 1).
    """

    duration: float
    output_throughput: float
    mean_ttft: float | None = None
    median_ttft: float | None = None
    mean_tpot: float | None = None
    median_tpot: float | None = None


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One load that a server served to the end. source: the file, and which of its results, for messages.

    requests: in order of arrival. max_concurrency: most requests in flight, None for no limit.
    has_lengths: whether each request's length is known, or all were given the mean.
    """

    source: str
    served: ServedDeployment
    requests: tuple[RequestSpec, ...]
    max_concurrency: int | None
    figures: LoadFigures
    has_lengths: bool


@dataclass(frozen=True, slots=True)
class BatchResult:
    """One batch of exact size, timed. requests: (new tokens, tokens in its cache after the step) of each.

    Only the model's forward was timed: neither the output head nor sampling, nor what the host does for a step.
    """

    source: str
    served: ServedDeployment
    requests: tuple[tuple[int, int], ...]
    seconds: float


@dataclass(slots=True)
class Results:
    """All that files hold. excluded: unusable ones by reason."""

    loads: list[LoadResult] = field(default_factory=list)
    batches: list[BatchResult] = field(default_factory=list)
    excluded: Counter[str] = field(default_factory=Counter)

    def add(self, other: Results) -> None:
        self.loads += other.loads
        self.batches += other.batches
        self.excluded += other.excluded


@dataclass(frozen=True, slots=True)
class MeasuredRequest:
    """One request that was answered. Seconds; start counts from any fixed moment; ttft None: it is not known."""

    start: float
    num_prompt_tokens: int
    num_output_tokens: int
    ttft: float | None
    latency: float

    @property
    def tpot(self) -> float | None:
        if self.ttft is None or self.num_output_tokens < 2:
            return None
        return (self.latency - self.ttft) / (self.num_output_tokens - 1)


def in_order(requests: Sequence[MeasuredRequest], *, arrive_over_time: bool) -> tuple[RequestSpec, ...]:
    """The requests as a simulation takes them. In a closed loop the next is sent when one has ended."""
    ordered = sorted(requests, key=lambda each: each.start)
    first = ordered[0].start
    return tuple(
        RequestSpec(
            index, each.num_prompt_tokens, each.num_output_tokens, each.start - first if arrive_over_time else 0.0
        )
        for index, each in enumerate(ordered)
    )


def figures_of(requests: Sequence[MeasuredRequest], duration: float | None = None) -> LoadFigures:
    """Means and medians over requests. duration: by default from the first start to the last end."""
    if duration is None:
        duration = max(each.start + each.latency for each in requests) - min(each.start for each in requests)
    ttfts = [each.ttft for each in requests if each.ttft is not None]
    tpots = [found for each in requests if (found := each.tpot) is not None]
    return LoadFigures(
        duration=duration,
        output_throughput=sum(each.num_output_tokens for each in requests) / duration,
        mean_ttft=fmean(ttfts) if ttfts else None,
        median_ttft=median(ttfts) if ttfts else None,
        mean_tpot=fmean(tpots) if tpots else None,
        median_tpot=median(tpots) if tpots else None,
    )


def alike(count: int, prompt_tokens: float, output_tokens: float) -> tuple[RequestSpec, ...]:
    """``count`` requests whose lengths add up to those of all, each as long as the mean, rounded."""
    prompts, outputs = _shares(count, prompt_tokens), _shares(count, output_tokens)
    return tuple(RequestSpec(index, max(prompts[index], 1), max(outputs[index], 1)) for index in range(count))


def _shares(count: int, total: float) -> list[int]:
    """Whole numbers that differ by one at most and add up to ``total``."""
    ends = [math.floor(total * (index + 1) / count + 0.5) for index in range(count)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def refuse_empty(results: Results, source: str) -> Results:
    """KvplanError where nothing is left to calibrate with."""
    if results.loads or results.batches:
        return results
    reasons = "; ".join(f"{count} x {reason}" for reason, count in results.excluded.items()) or "it has no results"
    raise KvplanError(f"Nothing in {source} can be used: {reasons}.", hint="give results of loads that were served")
