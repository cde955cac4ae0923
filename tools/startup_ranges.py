"""The 90 % interval around vLLM's KV pool: fitted to the collected start-ups, and checked on sources held out.

``python tools/score_vllm_startups.py --ranges`` prints the result, ``--write-ranges`` writes what ships
(profiles/errors/startups.json).

A start-up tells up to four differences: of the weights, the activation peak and the graphs where its log prints them,
and of the pool less these. Each is taken as a sum of independent causes, whose spreads expectation-maximization finds.
Most start-ups agree to the rounding of the log and a few are far off, so differences are taken as Student's t with two
degrees of freedom: one that is far off does not set a spread alone. For each cause, one start-up as far off as
``PRIORS`` is added: a cause that no other start-up shows is as uncertain as the whole correction is large.

Sources are held out one at a time with all of their start-ups: none is compared with spreads that were fitted to it,
and how well its kind is known does not count its own source. Only the campaign (37 start-ups by one script on one kind
of GPU) is asked the other question, too: whether a further start-up of it lies inside.

For a GPU family and age of vLLM with many start-ups, the factor is the conformal one over these start-ups; for the
others each source counts once, however many start-ups it has, since those of one source err together.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, get_args

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import is_modified_build, vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.catalog.startup_errors import ComparedStartups, Evidence, StartupErrors, startup_errors
from kvplan.errors import KvplanError
from kvplan.estimate.vllm.budget import tensor_map_bytes
from kvplan.estimate.vllm.kinds import Kinds, deployment_kinds
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm
from kvplan.estimate.vllm.ranges import (
    FIRST_CAPTURE_GIB,
    SHARES,
    Cause,
    Group,
    Standing,
    half_width_bytes,
    kv_range,
    range_amounts,
    split_loss_bytes,
    standing,
    warm_gain_bytes,
)
from kvplan.units import GIB
from startup_rows import (
    Row,
    is_campaign,
    number,
    row_activation_gib,
    row_gpu,
    row_graph_estimate_gib,
    row_settings,
    row_source,
    row_spec,
    row_version,
)

LEVEL: Final = 0.9
PRIORS: Final[dict[Cause, float]] = {
    "plain weights": 0.01,
    "quantized weights": 0.02,
    "activations": 0.05,
    "encoder": 0.1,
    "outside torch": 0.1,
    "newer releases": 0.3,
    "several GPUs": 0.2,
    "unified memory": 1.0,
    "GPU and release": 0.01,
    "kind of deployment": 0.02,
    "CUDA graphs": 1.0,
}
_WEIGHTS: Final[tuple[Cause, ...]] = ("plain weights", "quantized weights")
_PROFILED: Final[tuple[Cause, ...]] = ("activations", "encoder")
_EXACT_WEIGHTS: Final = 0.00017
"""Not fitted: 9 of 10 logs of the campaign, whose models' tensors are known, differ by at most 0.03 % in the weights,
which is also the rounding of what they print; divided by the factor of 1.8 it is this."""
_DEGREES_OF_FREEDOM: Final = 2
_ROUNDING_GIB: Final = 0.005
"""Logs print two digits: no difference counts as smaller."""
_ITERATIONS: Final = 50
_OTHER_RANK: Final = 0.01
"""Where a log's memory and its tokens disagree by more, the memory is that of another rank than the smallest."""
_OTHER_LAYOUT: Final = 0.05
"""Tokens per byte that differ by more come from another layout, or another format, of the cache."""
_OTHER_LAYOUT_OF_RANKS: Final = 1.5

Amounts = dict[Cause, float]


@dataclass(frozen=True, slots=True)
class Difference:
    """Predicted less observed, in GiB, and what each cause behind it applies to."""

    gib: float
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class FirstSight:
    """What was predicted for a start-up before anything was mended for it.

    ``counts``: which of the amounts that were found in sources later the model of that day already counted.
    """

    pool_gib: float
    tokens: int
    counts: frozenset[str]

    def with_known(self, amounts: Mapping[str, float]) -> FirstSight:
        """Return it less the ``amounts`` in GiB that it did not count, with no figure fitted to start-ups."""
        gib = sum(amount for name, amount in amounts.items() if name not in self.counts)
        if not gib or self.pool_gib <= gib:
            return self
        share = (self.pool_gib - gib) / self.pool_gib
        return replace(self, pool_gib=self.pool_gib - gib, tokens=int(self.tokens * share))


@dataclass(frozen=True, slots=True)
class Startup:
    """One start-up beside its prediction; what the log does not tell, or tells of another rank, is None.

    ``pool_error_gib``: predicted less observed, of grade A alone, which is predicted end to end: from the tokens where
    they are printed. Where the start-up was compared before anything was mended for it, it is the error of that day,
    and ``is_first_sight`` says so. ``memory_error_gib`` is that of the memory as printed, and ``layout_ratio`` by what
    the tokens differ from those that this memory would hold. ``weights_gib``, ``peak_gib`` and ``graphs_gib`` are
    predicted less logged; of graphs the log's estimate counts, which is what is subtracted.
    """

    id: str
    source: str
    campaign: bool
    modified: bool
    spec: ModelSpec
    gpu: GpuProfile
    found: VllmPrediction
    kinds: Kinds
    tokens: float | None
    pool_gib: float | None
    pool_error_gib: float | None
    is_first_sight: bool
    memory_error_gib: float | None
    layout_ratio: float | None
    shows_layout: bool
    weights_gib: float | None
    peak_gib: float | None
    graphs_gib: float | None

    @property
    def has_other_layout(self) -> bool:
        """Whether the predicted layout of the cache, or its format, was another than vLLM's."""
        return self.layout_ratio is not None and abs(self.layout_ratio - 1) > _OTHER_LAYOUT

    @property
    def largest_error_gib(self) -> float | None:
        """Of the tokens and of the KV memory: the interval has to hold both. Of the memory alone in another layout."""
        errors = [] if self.has_other_layout else [self.pool_error_gib]
        return max((abs(error) for error in (*errors, self.memory_error_gib) if error is not None), default=None)

    def amounts(self, evidence: Evidence) -> Amounts:
        """Return what each cause applies to, where ``evidence`` is known: less this start-up, or all of its source."""
        return range_amounts(self.spec, self.gpu, self.found, self.standing(evidence))

    def standing(self, evidence: Evidence) -> Standing:
        """Return how well its kind is known without this start-up, or without all of its source."""
        return standing(self.kinds, self.others(evidence))

    def others(self, evidence: Evidence) -> Evidence:
        """Return ``evidence`` without what this start-up is part of."""
        return _others(evidence, self.source, tuple(self.kinds.items()) if self.campaign else None)

    def differences(self, evidence: Evidence) -> tuple[Difference, ...]:
        """Return what a fit takes from this start-up: the parts, and of the pool what they do not explain."""
        amounts = self.amounts(evidence)
        parts = tuple(self._parts(amounts))
        error = self.memory_error_gib if self.has_other_layout else self.pool_error_gib
        if error is None:
            return parts
        told = [part for part in parts if "CUDA graphs" not in part.amounts]
        seen = {cause for part in told for cause in part.amounts}
        rest = {cause: amount for cause, amount in amounts.items() if cause not in seen}
        return (*parts, Difference(-error - sum(part.gib for part in told), rest))

    def _parts(self, amounts: Amounts) -> Iterable[Difference]:
        for gib, causes in ((self.weights_gib, _WEIGHTS), (self.peak_gib, _PROFILED)):
            shares = {cause: amounts[cause] for cause in causes if cause in amounts}
            if gib is not None and shares and not self.is_first_sight:
                yield Difference(gib, shares)
        if self.graphs_gib is not None:
            captured = max(self.found.rank.cudagraph_bytes / GIB, FIRST_CAPTURE_GIB)
            yield Difference(self.graphs_gib, {"CUDA graphs": captured})


@cache  # many start-ups ask for the same, and standings are remembered by it
def _others(evidence: Evidence, source: str, kinds: tuple[tuple[str, str], ...] | None) -> Evidence:
    """``evidence`` without a source, or without one start-up of it that is of these kinds."""
    if kinds is None:
        return evidence.without(source)
    is_counted = any(each.source == source and each.kinds == dict(kinds) for each in evidence.startups)
    return evidence.less_one(source, dict(kinds)) if is_counted else evidence


def read_startups(
    rows: Iterable[Row],
    models: dict[str, dict[str, object]],
    first_sight: Mapping[str, FirstSight] = MappingProxyType({}),
) -> list[Startup]:
    """Return every row that can be predicted. ``first_sight``: by the rows' ids."""
    found = (_startup(row, models, first_sight.get(row["id"])) for row in rows if "Embedding" not in row["model"])
    return [each for each in found if each is not None]


def read_first_sight(path: Path) -> dict[str, FirstSight]:
    """Return what was predicted for rows before they were looked at, by id."""
    with path.open(encoding="utf-8", newline="") as file:
        return {
            record["id"]: FirstSight(
                float(record["predicted_pool_gib"]),
                int(record["predicted_tokens"]),
                frozenset(record["counts"].split(";")),
            )
            for record in csv.DictReader(file)
        }


def _startup(row: Row, models: dict[str, dict[str, object]], first: FirstSight | None) -> Startup | None:
    try:
        spec, gpu = row_spec(row, models), row_gpu(row)
        found = predict_vllm(spec, gpu, row_settings(row), row_version(row))
    except KvplanError:
        return None
    rank, is_first_sight = found.rank, first is not None
    tokens, available = _observed_tokens(row, found), number(row["available_kv_gib"])
    pool = rank.available_kv_bytes / GIB
    gain, loss = warm_gain_bytes(found) / GIB, split_loss_bytes(spec, gpu, found) / GIB
    if first is None:
        first = FirstSight(pool, found.kv_cache_tokens, frozenset())
    else:
        maps = tensor_map_bytes(gpu, vllm_release(found.version), spec.layers) / GIB
        known = {
            "compilation": gain - rank.pinned_bytes / GIB,
            "tensor maps": maps,
            "segments": rank.segment_bytes / GIB,
            "pinned": rank.pinned_bytes / GIB,
            "local memory": rank.local.grown_bytes / GIB,
        }
        first = first.with_known(known)
    printed = available
    if available is None and tokens and found.kv_cache_tokens and first.tokens:
        available = _mended_layout_gib(tokens, found, first)
    from_tokens = first.pool_gib * tokens / first.tokens if tokens and first.tokens else None
    observed = available if from_tokens is None else from_tokens
    is_whole = row["inferred"].strip()[1:2] == "A" and observed is not None
    is_alone = found.settings.serving.tensor_parallel_size * found.settings.serving.pipeline_parallel_size == 1
    is_same_rank = is_alone or _agree(available, observed)
    ratio = _layout_ratio(row, available, found, first, is_alone=is_alone)
    is_same, is_comparable = is_same_rank or ratio is not None, is_whole and not _shares_gpu(row)
    weights, peak = number(row["weights_gib"]), row_activation_gib(row)
    return Startup(
        id=row["id"],
        source=row_source(row),
        campaign=is_campaign(row),
        modified=is_modified_build(row["vllm_version"]),
        spec=spec,
        gpu=gpu,
        found=found,
        kinds=deployment_kinds(spec, gpu, found),
        tokens=tokens if is_whole else None,
        pool_gib=printed if is_whole and is_same_rank else None,
        pool_error_gib=_outside(first.pool_gib - observed, gain, loss)
        if is_comparable and observed and observed > 0
        else None,
        memory_error_gib=_outside(first.pool_gib - available, gain, loss)
        if is_comparable and available is not None and available > 0 and is_same
        else None,
        is_first_sight=is_first_sight,
        layout_ratio=ratio,
        shows_layout=bool(tokens and printed and printed > 0) and row["inferred"].strip()[1:2] in ("A", "B"),
        weights_gib=rank.weight_bytes / GIB - weights if weights and is_same_rank else None,
        peak_gib=-_outside(peak - rank.activation.peak_bytes / GIB, gain)
        if peak and is_same_rank and is_whole
        else None,
        graphs_gib=_graphs_error_gib(row, found, gpu),
    )


def _outside(error: float, gain: float, loss: float = 0.0) -> float:
    """Predicted less observed, where a later start may have ``gain`` more than predicted and a first one ``loss`` less.

    Logs seldom say which they are, so what lies between the two is no error here. Whether the interval, which is of the
    start that was asked about, holds it is counted all the same (``Coverage``).
    """
    return min(error + gain, 0.0) if error < 0 else max(error - loss, 0.0)


def _mended_layout_gib(tokens: float, found: VllmPrediction, first: FirstSight) -> float | None:
    """The memory that tokens tell in today's layout, where the layout of the first sight has been mended since.

    Without it a log that prints tokens alone would show an error of the layout as one of the memory.
    """
    today_gib = found.rank.available_kv_bytes / GIB
    mended = found.kv_cache_tokens / today_gib / (first.tokens / first.pool_gib)
    return tokens * today_gib / found.kv_cache_tokens if abs(mended - 1) > _OTHER_LAYOUT else None


def _layout_ratio(
    row: Row, available: float | None, found: VllmPrediction, first: FirstSight, *, is_alone: bool
) -> float | None:
    """Tokens that a log prints, over those that its memory would hold in the predicted layout; grades A and B.

    Of several GPUs a log may print one's memory and another's tokens: only what is far apart is the layout.
    """
    tokens = _observed_tokens(row, found)
    if row["inferred"].strip()[1:2] not in ("A", "B") or not tokens or not available or not first.tokens:
        return None
    ratio = tokens / (available / first.pool_gib * first.tokens)
    return ratio if is_alone or max(ratio, 1 / ratio) > _OTHER_LAYOUT_OF_RANKS else None


def _agree(available: float | None, observed: float | None) -> bool:
    """Whether the memory that a log prints can be that of the rank whose blocks it prints."""
    return available is None or observed is None or abs(available - observed) <= _OTHER_RANK * abs(observed)


def _shares_gpu(row: Row) -> bool:
    """Whether another process had memory on the GPU, which vLLM counts and kvplan is not told."""
    return "other memory on the GPU" in row["inferred"]


def _graphs_error_gib(row: Row, found: VllmPrediction, gpu: GpuProfile) -> float | None:
    """Predicted less what the release itself estimated; not where it estimates by memory that others take, too."""
    estimate, graphs = row_graph_estimate_gib(row), found.rank.cudagraph_bytes / GIB
    return None if estimate is None or not graphs or gpu.unified_memory else graphs - estimate


def _observed_tokens(row: Row, found: VllmPrediction) -> float | None:
    """Tokens as printed, else the blocks in tokens."""
    blocks = number(row["num_gpu_blocks"])
    if not number(row["kv_cache_tokens"]) and blocks and found.num_blocks:
        return found.kv_cache_tokens * blocks / found.num_blocks
    return number(row["kv_cache_tokens"])


def collect_evidence(startups: Iterable[Startup]) -> Evidence:
    """Return the start-ups that were compared, counted by source and kind."""
    counted = Counter(
        (startup.source, startup.pool_error_gib is not None, startup.shows_layout, tuple(startup.kinds.items()))
        for startup in startups
        if startup.pool_error_gib is not None or startup.shows_layout
    )
    return Evidence(
        tuple(
            ComparedStartups(source, count, end_to_end, shows_layout, dict(kinds))
            for (source, end_to_end, shows_layout, kinds), count in sorted(counted.items())
        )
    )


def fit_ranges(startups: Sequence[Startup]) -> StartupErrors:
    """Return spreads and factors from ``startups``."""
    evidence = collect_evidence(startups)
    spreads = _fit_spreads([each for startup in startups for each in startup.differences(evidence)])
    unit = StartupErrors(spreads, {}, 1.0, evidence)
    ratios: dict[str, list[tuple[float, str]]] = {group: [] for group in get_args(Group)}
    for startup in startups:
        if startup.largest_error_gib is not None:
            half = half_width_bytes(startup.amounts(evidence), unit, 1.0) / GIB
            group = startup.standing(evidence).group
            ratios[group].append((startup.largest_error_gib / half, startup.source))
    factors = {
        group: _by_startup(found) if group == "well compared" else _by_source(found) for group, found in ratios.items()
    }
    return replace(unit, factors=factors, layout_factor=_layout_factor(startups, evidence))


def _layout_factor(startups: Sequence[Startup], evidence: Evidence) -> float:
    """The factor, either way, that held tokens per byte where no other source had shown the layout.

    One that turned out to be another than predicted counts, whatever else was of its kind.
    """
    ratios = []
    for startup in startups:
        if startup.layout_ratio is None:
            continue
        if startup.has_other_layout or startup.standing(evidence).unseen_layout:
            ratios.append((max(startup.layout_ratio, 1 / startup.layout_ratio), startup.source))
    return _by_source(ratios) if ratios else 1.0


def _by_startup(ratios: Sequence[tuple[float, str]]) -> float:
    """The quantile that a further start-up like these stays below with probability ``LEVEL``."""
    if not ratios:
        return math.inf
    rank = min(math.ceil((len(ratios) + 1) * LEVEL), len(ratios))
    return sorted(ratio for ratio, _ in ratios)[rank - 1]


def _by_source(ratios: Sequence[tuple[float, str]]) -> float:
    """The same for a start-up of a further source: each source counts once, and so does the further one.

    The largest ratio where there are too few sources for that.
    """
    counts = Counter(source for _, source in ratios)
    below, wanted = 0.0, LEVEL * (len(counts) + 1)
    for ratio, source in sorted(ratios):
        below += 1 / counts[source]
        if below >= wanted - 1e-9:
            return ratio
    return max((ratio for ratio, _ in ratios), default=1.0)


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
    return {"exact weights": _EXACT_WEIGHTS} | spreads


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


Models = Callable[[Startup], StartupErrors]


def coverage_of_tokens(name: str, startups: Iterable[Startup], errors_of: Models) -> Coverage:
    """Of the tokens that logs print, under what ``errors_of`` gives for a start-up."""
    scored = [startup for startup in startups if startup.tokens]
    ranges = [kv_range(each.spec, each.gpu, each.found, errors_of(each)).tokens for each in scored]
    return _coverage(name, scored, [each.tokens or 0.0 for each in scored], ranges)


def coverage_of_pools(name: str, startups: Iterable[Startup], errors_of: Models) -> Coverage:
    """Of the KV memory that logs print for the rank that decides the tokens."""
    scored = [startup for startup in startups if startup.pool_gib and startup.pool_gib > 0]
    ranges = [kv_range(each.spec, each.gpu, each.found, errors_of(each)).pool_bytes for each in scored]
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


def held_out_errors(startups: Sequence[Startup]) -> dict[str, StartupErrors]:
    """Return, for each source, what all others give."""
    sources = {startup.source for startup in startups if startup.pool_error_gib is not None}
    return {source: fit_ranges([each for each in startups if each.source != source]) for source in sorted(sources)}


def coverages(startups: Sequence[Startup], errors_of: Models) -> list[Coverage]:
    """Tokens and KV memory, of the campaign, of other sources and of both."""
    sets = {
        "all": list(startups),
        "campaign": [startup for startup in startups if startup.campaign],
        "other sources": [startup for startup in startups if not startup.campaign],
    }
    measures = {"KV tokens": coverage_of_tokens, "KV memory": coverage_of_pools}
    return [
        measure(f"{figure}, {name}", members, errors_of)
        for figure, measure in measures.items()
        for name, members in sets.items()
    ]


def print_ranges(startups: Sequence[Startup]) -> None:
    """Spreads, coverage of what they were fitted to, and coverage of each source by spreads fitted to the others."""
    plain, shipped = [startup for startup in startups if not startup.modified], startup_errors()
    fitted, held_out = fit_ranges(plain), held_out_errors(plain)
    print(f"\nspreads fitted to {len(plain)} start-ups, and shipped:")
    for cause, spread in fitted.spreads.items():
        count = sum(1 for each in plain if any(cause in part.amounts for part in each.differences(fitted.evidence)))
        unit = "share" if cause in SHARES else "GiB"
        print(f"  {cause:34s} {spread:8.4f} {shipped.spreads[cause]:8.4f} {unit:5s} in {count} start-ups")
    for group, factor in fitted.factors.items():
        print(f"  {'factor, ' + group:34s} {factor:8.4f} {shipped.factors[group]:8.4f}")
    print(f"  {'factor of an unseen layout':34s} {fitted.layout_factor:8.4f} {shipped.layout_factor:8.4f}")
    print("held out, source by source:")
    for coverage in coverages(plain, lambda startup: held_out[startup.source]):
        print(coverage.sentence())
    print("as shipped, fitted to all of them:")
    for coverage in coverages(plain, lambda _: shipped):
        print(coverage.sentence())
    print("modified builds, which no spread was fitted to:")
    print(coverage_of_tokens("KV tokens", [each for each in startups if each.modified], lambda _: shipped).sentence())


def write_ranges(startups: Sequence[Startup], path: Path) -> None:
    """Write what ships: spreads to two digits, factors, and the start-ups behind them."""
    fitted = fit_ranges([startup for startup in startups if not startup.modified])
    rounded = replace(
        fitted,
        spreads={cause: float(f"{spread:.2g}") for cause, spread in fitted.spreads.items()},
        factors={group: round(factor, 2) for group, factor in fitted.factors.items()},
        layout_factor=round(fitted.layout_factor, 1),
    )
    path.write_text(json.dumps(rounded.as_json(), indent=1) + "\n", encoding="utf-8")
