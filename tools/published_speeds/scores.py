"""Predicted beside measured: one score per row and figure, and what groups of rows come to."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.catalog.published_errors import ServerKind, server_kind
from kvplan.errors import KvplanError
from kvplan.estimate.speed.queueing.figures import quantile
from published_speeds.models import model_kind
from published_speeds.predictions import Figure, predict
from published_speeds.rows import PublishedRow
from published_speeds.settings import deployed

_TOO_SMALL = 1.35
FIGURES = ("tpot", "throughput", "ttft")
TAIL_FIGURES = ("tpot_p99", "ttft_p99")
"""The 99th percentiles over a run's requests."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of one row, in the unit that it was published in."""

    measured: float
    predicted: Figure

    @property
    def deviation(self) -> float:
        """Positive where more is predicted than was measured; relative to what was measured."""
        return self.predicted.middle / self.measured - 1

    @property
    def log_error(self) -> float:
        """log(measured / predicted)."""
        return math.log(self.measured / self.predicted.middle)

    @property
    def is_near(self) -> bool:
        return abs(self.measured / self.predicted.middle - 1) <= 0.3

    @property
    def is_held(self) -> bool:
        return self.predicted.holds(self.measured)


@dataclass(frozen=True, slots=True)
class RowScore:
    """``figures``: by name, those that the row states and that were predicted. ``format``: as for ``ServerKind``."""

    row: PublishedRow
    origin: str
    engine: str
    gpu: str
    generation: str
    kind: str
    figures: Mapping[str, Compared]
    is_first_engine: bool = False
    holds_load: bool = True
    pool_tokens: float = math.inf
    format: str = ""

    @property
    def is_memory_off(self) -> bool:
        """Whether more ran at once than the predicted pool holds: memory's part of the prediction is wrong, by 35 %.

        Running are tokens per second times the time of a token (Little's law), with prompts and half their answers.
        """
        throughput, tpot = self.row.measured.output_throughput, self.row.measured.tpot_ms
        if throughput is None or tpot is None:
            return False
        held = throughput * tpot / 1000 * (self.row.input_tokens + self.row.output_tokens / 2)
        return held > _TOO_SMALL * self.pool_tokens

    @property
    def is_load_off(self) -> bool:
        """Whether requests came at a rate of which the server carried less than 1 / 1.35 of what is predicted."""
        throughput = self.figures.get("throughput")
        if self.row.request_rate is None or throughput is None:
            return False
        return _TOO_SMALL * throughput.measured < throughput.predicted.middle

    @property
    def times_mean(self) -> float:
        """The predicted 99th percentile of TPOT by its mean, or its median; infinite where one is not predicted."""
        pair = [self.figures[name].predicted.middle for name in ("tpot_p99", "tpot") if name in self.figures]
        return pair[0] / pair[1] if len(pair) > 1 else math.inf

    @property
    def server(self) -> ServerKind:
        """What an interval for such rows is learned from."""
        is_mixture, is_latent = self.kind != "dense", self.kind == "latent"
        return server_kind(
            self.engine,
            self.generation,
            is_mixture=is_mixture,
            is_latent=is_latent,
            is_first=self.is_first_engine,
            format=self.format,
        )


def score_row(row: PublishedRow, measured: MeasuredProfiles) -> RowScore | str:
    """The score, or why there is none."""
    try:
        found = deployed(row)
        predicted = predict(row, found, measured)
    except KvplanError as error:
        return f"{row.id}: {error.message}"
    pairs = {
        "tpot": (row.measured.tpot_ms, predicted.tpot_ms),
        "throughput": (row.measured.output_throughput, predicted.output_throughput),
        "ttft": (row.measured.ttft_ms, predicted.ttft_ms),
        "tpot_p99": (row.measured.tpot_p99_ms, predicted.tpot_p99_ms),
        "ttft_p99": (row.measured.ttft_p99_ms, predicted.ttft_p99_ms),
    }
    figures = {
        name: Compared(seen, told) for name, (seen, told) in pairs.items() if seen is not None and told is not None
    }
    if not figures:
        return f"{row.id}: no figure to compare"
    gpu, kind = found.choice.gpu, model_kind(found.spec)
    return RowScore(
        row,
        predicted.origin,
        found.engine,
        gpu.id,
        gpu.architecture,
        kind,
        figures,
        is_first_engine=found.is_first_engine,
        holds_load=predicted.holds_load,
        pool_tokens=predicted.pool_tokens * found.replicas,
        format=predicted.format,
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """|error| of one figure over the rows of a group, as shares.

    coverage: how many lie in their interval; near: how many are 0.7 to 1.3 times what is predicted, as the ranges in
    tables of plans have it, which know nothing of published errors. width: median of high / low of the intervals;
    interval_score: the mean of ``interval_score``.
    """

    num_rows: int
    median: float
    p90: float
    bias: float
    coverage: float
    near: float
    width: float
    interval_score: float


def summarize(scores: Iterable[RowScore], figure: str) -> Summary | None:
    found = [score.figures[figure] for score in scores if figure in score.figures]
    if not found:
        return None
    errors = sorted(abs(each.deviation) for each in found)
    return Summary(
        num_rows=len(found),
        median=statistics.median(errors),
        p90=quantile(errors, 0.9),
        bias=statistics.median(each.deviation for each in found),
        coverage=sum(each.is_held for each in found) / len(found),
        near=sum(each.is_near for each in found) / len(found),
        width=statistics.median(each.predicted.high / each.predicted.low for each in found),
        interval_score=statistics.fmean(map(interval_score, found)),
    )


_BEYOND = 0.1
"""The share of measurements that an interval is meant not to hold."""


def interval_score(compared: Compared) -> float:
    """Width and misses of an interval in one number, of logarithms: (u - l) + 2/a (l - x)+ + 2/a (x - u)+, a = 0.1.

    Winkler's score (Gneiting and Raftery 2007, "Strictly proper scoring rules, prediction, and estimation", section
    6.2); the least on average is that of the true 5 % and 95 % quantiles.
    """
    low, high, seen = map(math.log, (compared.predicted.low, compared.predicted.high, compared.measured))
    return (high - low) + 2 / _BEYOND * (max(low - seen, 0.0) + max(seen - high, 0.0))


def what_decides(score: RowScore) -> str:
    """Memory's part of a prediction apart from time's."""
    if score.is_memory_off:
        return "memory: the pool was larger"
    return "times: the pool holds the load" if score.holds_load else "memory: requests wait"


def bar_group(score: RowScore) -> str:
    """The rows that one bar is set for: dense models on Hopper and Ampere together, mixtures on every GPU."""
    if score.kind != "dense":
        return "mixture or latent, all GPUs"
    return "dense, Hopper and Ampere" if score.generation in ("Hopper", "Ampere") else "dense, other GPUs"


def grouped(scores: Iterable[RowScore], key: Callable[[RowScore], str]) -> dict[str, list[RowScore]]:
    found: defaultdict[str, list[RowScore]] = defaultdict(list)
    for score in scores:
        found[key(score)].append(score)
    return dict(sorted(found.items()))
