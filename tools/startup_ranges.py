"""The 90 % interval around vLLM's KV pool: fitted to the collected start-ups, and checked on sources held out.

``python tools/score_vllm_startups.py --ranges`` prints the result. What is fitted, estimate/vllm/ranges.py
ships (``SPREADS``, ``FACTOR``); tests/estimate/vllm/test_ranges.py compares them.

A start-up tells up to four differences: of the weights, the activation peak and the graphs where its log prints them,
and of the pool less these. Each is taken as a sum of independent causes, whose spreads expectation-maximization finds.
Most start-ups agree to the rounding of the log and a few are far off, so differences are taken as Student's t with two
degrees of freedom: one that is far off does not set a spread alone. For each cause, one start-up as far off as
``PRIORS`` is added: a cause that no other start-up shows is as uncertain as the whole correction is large.

Sources are held out one at a time with all of their start-ups: none is compared with spreads that were fitted to it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import is_modified_build
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.estimate.vllm.prediction import RankMemory, VllmPrediction, predict_vllm
from kvplan.estimate.vllm.ranges import SHIPPED, SPREADS, Cause, RangeModel, kv_range, range_amounts
from kvplan.units import GIB
from startup_rows import Row, is_campaign, number, row_gpu, row_settings, row_source, row_spec, row_version

LEVEL: Final = 0.9
PRIORS: Final[dict[Cause, float]] = {
    "plain weights": 0.01,
    "quantized weights": 0.02,
    "activations": 0.05,
    "outside torch": 0.1,
    "several GPUs": 0.2,
    "unified memory": 1.0,
    "release or GPU without start-ups": 0.2,
    "CUDA graphs": 1.0,
}
_WEIGHTS: Final[tuple[Cause, ...]] = ("plain weights", "quantized weights")
_DEGREES_OF_FREEDOM: Final = 2
_ROUNDING_GIB: Final = 0.005
"""Logs print two digits: no difference counts as smaller."""
_ITERATIONS: Final = 100
_OTHER_RANK: Final = 0.01
"""Where a log's memory and its tokens disagree by more, the memory is that of another rank than the smallest."""

Amounts = dict[Cause, float]


@dataclass(frozen=True, slots=True)
class Difference:
    """Predicted less observed, in GiB, and what each cause behind it applies to."""

    gib: float
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class Startup:
    """One start-up beside its prediction; ``tokens`` and ``pool_gib`` are None where the log does not tell.

    ``pool_error_gib``: predicted less observed, of grade A alone, which is predicted end to end: from the tokens where
    they are printed. ``parts``: what else the log tells.
    """

    id: str
    source: str
    campaign: bool
    modified: bool
    spec: ModelSpec
    gpu: GpuProfile
    found: VllmPrediction
    amounts: Amounts
    tokens: float | None
    pool_gib: float | None
    pool_error_gib: float | None
    parts: tuple[Difference, ...]

    @property
    def largest_error_gib(self) -> float | None:
        """Of the tokens and of the KV memory: the interval has to hold both."""
        if self.pool_error_gib is None or self.pool_gib is None:
            return None if self.pool_error_gib is None else abs(self.pool_error_gib)
        return max(abs(self.pool_error_gib), abs(self.found.rank.available_kv_bytes / GIB - self.pool_gib))

    @property
    def differences(self) -> tuple[Difference, ...]:
        """What a fit takes from this start-up: the parts, and of the pool what they do not explain."""
        if self.pool_error_gib is None:
            return self.parts
        told = [part for part in self.parts if "CUDA graphs" not in part.amounts]
        seen = {cause for part in told for cause in part.amounts}
        rest = {cause: amount for cause, amount in self.amounts.items() if cause not in seen}
        return (*self.parts, Difference(-self.pool_error_gib - sum(part.gib for part in told), rest))


def read_startups(rows: Iterable[Row], models: dict[str, dict[str, object]]) -> list[Startup]:
    """Every row that can be predicted."""
    found = (_startup(row, models) for row in rows if "Embedding" not in row["model"])
    return [each for each in found if each is not None]


def _startup(row: Row, models: dict[str, dict[str, object]]) -> Startup | None:
    try:
        spec, gpu = row_spec(row, models), row_gpu(row)
        found = predict_vllm(spec, gpu, row_settings(row), row_version(row))
    except KvplanError:
        return None
    amounts = range_amounts(spec, gpu, found)
    tokens, available = _observed_tokens(row, found), number(row["available_kv_gib"])
    pool = found.rank.available_kv_bytes / GIB
    from_tokens = pool * tokens / found.kv_cache_tokens if tokens and found.kv_cache_tokens else None
    observed = available if from_tokens is None else from_tokens
    is_whole = row["inferred"].strip()[1:2] == "A" and observed is not None
    is_same_rank = None in (available, observed) or abs(available - observed) <= _OTHER_RANK * abs(observed)  # type: ignore[operator, arg-type]
    return Startup(
        id=row["id"],
        source=row_source(row),
        campaign=is_campaign(row),
        modified=is_modified_build(row["vllm_version"]),
        spec=spec,
        gpu=gpu,
        found=found,
        amounts=amounts,
        tokens=tokens if is_whole else None,
        pool_gib=available if is_whole and is_same_rank else None,
        pool_error_gib=pool - observed if is_whole and observed is not None else None,
        parts=tuple(_parts(row, found.rank, amounts, is_whole=is_whole, is_same_rank=is_same_rank)),
    )


def _observed_tokens(row: Row, found: VllmPrediction) -> float | None:
    """Tokens as printed, else the blocks in tokens."""
    blocks = number(row["num_gpu_blocks"])
    if not number(row["kv_cache_tokens"]) and blocks and found.num_blocks:
        return found.kv_cache_tokens * blocks / found.num_blocks
    return number(row["kv_cache_tokens"])


def _parts(row: Row, rank: RankMemory, amounts: Amounts, *, is_whole: bool, is_same_rank: bool) -> Iterable[Difference]:
    weights, peak = number(row["weights_gib"]), number(row["activation_peak_gib"])
    if weights and is_same_rank:
        shares = {cause: amounts[cause] for cause in _WEIGHTS if cause in amounts}
        yield Difference(rank.weight_bytes / GIB - weights, shares)
    if peak and is_same_rank and is_whole:
        share: Amounts = {"activations": amounts["activations"]}
        yield Difference(rank.activation.peak_bytes / GIB - peak, share)
    estimate = re.search(r"estimate logged ([\d.]+)", row["inferred"])
    graphs = float(estimate[1]) if estimate else number(row["cudagraph_gib"])
    if graphs and graphs > 0 and rank.cudagraph_bytes:
        predicted = rank.cudagraph_bytes / GIB
        yield Difference(predicted - graphs, {"CUDA graphs": predicted})


def fit_ranges(startups: Sequence[Startup]) -> RangeModel:
    """Spreads and factor from ``startups``."""
    spreads = _fit_spreads([each for startup in startups for each in startup.differences])
    unit = RangeModel(spreads, 1.0)
    ratios = [
        startup.largest_error_gib * GIB / unit.half_width_bytes(startup.amounts)
        for startup in startups
        if startup.largest_error_gib is not None
    ]
    return RangeModel(spreads, _conformal(ratios))


def _conformal(ratios: Sequence[float]) -> float:
    """The quantile that a further start-up like these stays below with probability ``LEVEL``."""
    rank = min(math.ceil((len(ratios) + 1) * LEVEL), len(ratios))
    return sorted(ratios)[rank - 1]


def _fit_spreads(differences: Sequence[Difference]) -> dict[Cause, float]:
    variances = {cause: prior**2 for cause, prior in PRIORS.items()}
    for _ in range(_ITERATIONS):
        sums = {cause: prior**2 for cause, prior in PRIORS.items()}
        counts = dict.fromkeys(PRIORS, 1)
        for difference in differences:
            for cause, variance in _expected(difference, variances):
                sums[cause] += variance
                counts[cause] += 1
        variances = {cause: sums[cause] / counts[cause] for cause in PRIORS}
    spreads = {cause: math.sqrt(variance) for cause, variance in variances.items()}
    return spreads | {"exact weights": SPREADS["exact weights"]}


def _expected(difference: Difference, variances: Mapping[Cause, float]) -> Iterable[tuple[Cause, float]]:
    """The square of each cause's deviation per unit, as one difference makes it likely under ``variances``."""
    parts = {cause: variances[cause] * amount**2 for cause, amount in difference.amounts.items()}
    total = sum(parts.values())
    square = max(abs(difference.gib), _ROUNDING_GIB) ** 2
    weight = (_DEGREES_OF_FREEDOM + 1) / (_DEGREES_OF_FREEDOM + square / total)
    for cause, part in parts.items():
        share = part / total
        yield cause, (share**2 * weight * square + part * (1 - share)) / difference.amounts[cause] ** 2


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many of a set's observed figures lie in their interval. ``widths``: of the intervals, as shares."""

    name: str
    inside: int
    outside: tuple[str, ...]
    widths: tuple[float, ...]

    @property
    def total(self) -> int:
        return self.inside + len(self.outside)

    @property
    def share(self) -> float:
        return self.inside / self.total

    def sentence(self) -> str:
        width = sorted(self.widths)[len(self.widths) // 2]
        missed = f"; outside: {', '.join(self.outside)}" if self.outside else ""
        contains = f"contains {self.inside} of {self.total} ({self.share:.0%}), median width {width:.2%}"
        return f"  {self.name:28s} 90 % interval {contains}{missed}"


Models = Callable[[Startup], RangeModel]


def coverage_of_tokens(name: str, startups: Iterable[Startup], model_of: Models) -> Coverage:
    """Of the tokens that logs print, under the model that ``model_of`` gives for a start-up."""
    scored = [startup for startup in startups if startup.tokens]
    ranges = [kv_range(each.spec, each.gpu, each.found, model_of(each)).tokens for each in scored]
    return _coverage(name, scored, [each.tokens or 0.0 for each in scored], ranges)


def coverage_of_pools(name: str, startups: Iterable[Startup], model_of: Models) -> Coverage:
    """Of the KV memory that logs print for the rank that decides the tokens."""
    scored = [startup for startup in startups if startup.pool_gib and startup.pool_gib > 0]
    ranges = [kv_range(each.spec, each.gpu, each.found, model_of(each)).pool_bytes for each in scored]
    return _coverage(name, scored, [(each.pool_gib or 0.0) * GIB for each in scored], ranges)


def _coverage(
    name: str, startups: Sequence[Startup], observed: Sequence[float], ranges: Sequence[tuple[int, int]]
) -> Coverage:
    outside = [
        startup.id
        for startup, value, (low, high) in zip(startups, observed, ranges, strict=True)
        if not low <= value <= high
    ]
    widths = tuple((high - low) / value for value, (low, high) in zip(observed, ranges, strict=True))
    return Coverage(name, len(startups) - len(outside), tuple(outside), widths)


def held_out_models(startups: Sequence[Startup]) -> dict[str, RangeModel]:
    """For each source the spreads fitted to all others."""
    sources = {startup.source for startup in startups if startup.pool_error_gib is not None}
    return {source: fit_ranges([each for each in startups if each.source != source]) for source in sorted(sources)}


def coverages(startups: Sequence[Startup], model_of: Models) -> list[Coverage]:
    """Tokens and KV memory, of the campaign, of other sources and of both."""
    sets = {
        "all": list(startups),
        "campaign": [startup for startup in startups if startup.campaign],
        "other sources": [startup for startup in startups if not startup.campaign],
    }
    measures = {"KV tokens": coverage_of_tokens, "KV memory": coverage_of_pools}
    return [
        measure(f"{figure}, {name}", members, model_of)
        for figure, measure in measures.items()
        for name, members in sets.items()
    ]


def print_ranges(rows: Iterable[Row], models: dict[str, dict[str, object]]) -> None:
    """Spreads, coverage of what they were fitted to, and coverage of each source by spreads fitted to the others."""
    everything = read_startups(rows, models)
    startups = [startup for startup in everything if not startup.modified]
    fitted, held_out = fit_ranges(startups), held_out_models(startups)
    print(f"\nspreads fitted to {len(startups)} start-ups, and shipped:")
    for cause, spread in fitted.spreads.items():
        count = sum(1 for startup in startups if any(cause in each.amounts for each in startup.differences))
        unit = "GiB" if cause not in (*_WEIGHTS, "exact weights", "activations", "CUDA graphs") else "share"
        print(f"  {cause:34s} {spread:8.4f} {SHIPPED.spreads[cause]:8.4f} {unit:5s} in {count} start-ups")
    print(f"  {'factor':34s} {fitted.factor:8.4f} {SHIPPED.factor:8.4f}")
    print("held out, source by source:")
    for coverage in coverages(startups, lambda startup: held_out[startup.source]):
        print(coverage.sentence())
    print("as shipped, fitted to all of them:")
    for coverage in coverages(startups, lambda _: SHIPPED):
        print(coverage.sentence())
    print("modified builds, which no spread was fitted to:")
    print(coverage_of_tokens("KV tokens", [each for each in everything if each.modified], lambda _: SHIPPED).sentence())
