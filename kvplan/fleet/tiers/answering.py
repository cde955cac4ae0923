"""From a trace, a model and GPUs to the curves of ``kvplan cache``. No printing here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Final

from kvplan.catalog.devices.gpus import GpuCount
from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.catalog.published_errors import ErrorInterval
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.estimate.placed.placement import SizedDeployment
from kvplan.estimate.question import Question, answer_question, settings_on
from kvplan.estimate.speed.device_speed import DeploymentSpeed, RequestLengths
from kvplan.fleet.requests import FleetRequest, requests_of_file
from kvplan.fleet.tiers.curves import CacheCurve, cache_curve
from kvplan.fleet.tiers.layouts import CacheLayout, cache_layout
from kvplan.fleet.tiers.question import CacheAnswer, CacheQuestion, Distances, LayoutAnswer
from kvplan.fleet.tiers.splits import split_requests
from kvplan.fleet.tiers.worth import (
    HOST_BYTES_PER_GPU,
    PrefillTime,
    TierLink,
    TierMeasure,
    TierWorth,
    break_even_tokens,
    enough_of,
    host_link,
    nvme_link,
)
from kvplan.units import GIB
from kvplan.workload.files import FileSurvey, survey_file
from kvplan.workload.part import FilePart

SHOWN_SHARES: Final = (0.5, 0.9, 0.99)
"""Of the reused tokens, those whose reuse distance is shown."""
_STEPS: Final = 8
_LONGEST_HIT: Final = 131_072
Progress = Callable[[str], None]


def answer_cache(
    path: Path, spec: ModelSpec, question: CacheQuestion, part: FilePart, measured: MeasuredProfiles, progress: Progress
) -> CacheAnswer:
    """Return every curve. KvplanError for a trace that says of no prompt what it shares, and as ``cache_layout``."""
    survey = survey_file(path, part)
    if not survey.shares_prompts:
        raise KvplanError(
            f"The workload file {path} does not say what its prompts begin with in common.",
            hint="a trace with hash_ids (Mooncake, Bailian) or chats does; without, no reuse is known",
        )
    longest = question.longest_context or spec.longest_context
    progress("reading the trace")
    requests = requests_of_file(path, part, longest)
    known = _Trace(requests, survey)
    answers = tuple(
        _layout_answer(spec, question, gpu, kv_cache_dtype, known, measured, progress)
        for gpu in question.gpus
        for kv_cache_dtype in question.kv_cache_dtypes
    )
    return CacheAnswer(
        trace=path.name,
        model=spec.served_id,
        release=vllm_release(question.engine.version).text,
        num_requests=len(requests),
        num_left_out=survey.num_requests - len(requests),
        num_prompt_tokens=sum(request.num_prompt_tokens for request in requests),
        seconds=survey.seconds,
        question=question,
        layouts=answers,
        notes=survey.notes,
    )


@dataclass(frozen=True)
class _Trace:
    """The requests; formats with blocks of the same length share what is known of them."""

    requests: tuple[FleetRequest, ...]
    survey: FileSurvey
    known: dict[tuple[int, int, str, bool], CacheCurve] = field(default_factory=dict)

    def curve(self, layout: CacheLayout, num_caches: int, rule: str, *, keeps_answers: bool) -> CacheCurve:
        """Return the curve of requests that are split over caches."""
        key = (layout.unit_tokens, num_caches, rule, keeps_answers)
        if key not in self.known:
            split = split_requests(self.requests, num_caches, rule)
            self.known[key] = cache_curve(split, layout, keeps_answers=keeps_answers)
        return self.known[key].of_layout(layout)


@dataclass(frozen=True)
class _PlacedReplica:
    """One replica that fits, how fast it is, and what its cache holds."""

    deployment: SizedDeployment
    speed: DeploymentSpeed
    layout: CacheLayout

    @property
    def prefill(self) -> PrefillTime:
        """How long it reads prompts."""
        return PrefillTime(self.speed.model.steps, self.deployment.settings.max_num_batched_tokens)

    @property
    def errors(self) -> ErrorInterval | None:
        """Factors of a time between which 9 in 10 measurements lie: those of throughputs, turned round."""
        found = self.speed.model.error_interval("throughput")
        return None if found is None else replace(found, low=1 / found.high, high=1 / found.low)


def _layout_answer(
    spec: ModelSpec,
    question: CacheQuestion,
    gpu: GpuCount,
    kv_cache_dtype: str,
    trace: _Trace,
    measured: MeasuredProfiles,
    progress: Progress,
) -> LayoutAnswer:
    placed = _place(spec, question, gpu, kv_cache_dtype, trace, measured)
    layout, prefill = placed.layout, placed.prefill
    where = f"{gpu.gpu.id}, {layout.kv_cache_dtype} KV"
    num_caches = question.num_replicas * layout.num_engines
    progress(f"reuse distances: {where}")
    of_pools = "prefix" if question.split == "prefix" else "round-robin"
    own = trace.curve(layout, num_caches, of_pools, keeps_answers=True)
    below = trace.curve(layout, num_caches, question.split, keeps_answers=False)
    host, nvme = host_link(gpu.gpu, question.host_bytes_per_second), nvme_link(question.nvme_bytes_per_second)
    measure = TierMeasure(below, tuple(own.hits(layout.num_blocks)), host, prefill, placed.errors)
    needed = below.num_needed_blocks * layout.host_block_bytes
    gpus_of_tier = layout.num_ranks * (num_caches if question.split == "shared" else 1)
    usual = HOST_BYTES_PER_GPU * gpus_of_tier
    tiers = tuple(_measured(measure, _table_sizes(layout, needed, usual, question.host_bytes), progress, where))
    asked = enough_of(tiers, usual)
    if question.host_bytes is not None:
        asked = next(tier for tier in tiers if tier.size_bytes == question.host_bytes)
    return LayoutAnswer(
        gpu=gpu,
        num_gpus=num_caches * layout.num_ranks,
        gpus_of_tier=gpus_of_tier,
        curve=own,
        in_pool=_pool_worth(own, prefill),
        tiers=tiers,
        asked=asked,
        asked_nvme=_below_host(measure, asked, nvme, question.nvme_bytes),
        host=host,
        nvme=nvme,
        needed_bytes=needed,
        break_even_tokens=break_even_tokens(
            prefill.seconds, lambda tokens: host.load_seconds(tokens, layout), _LONGEST_HIT
        ),
        prefill_seconds=sum(prefill.seconds(request.num_prompt_tokens) for request in trace.requests),
        distances=tuple(_distances(below, layout)),
        usd_per_hour=None if gpu.gpu.price is None else gpu.gpu.price.usd_per_hour * num_caches * layout.num_ranks,
    )


def _place(
    spec: ModelSpec,
    question: CacheQuestion,
    gpu: GpuCount,
    kv_cache_dtype: str,
    trace: _Trace,
    measured: MeasuredProfiles,
) -> _PlacedReplica:
    """KvplanError where the model does not fit."""
    longest = question.longest_context or _context_of(spec, trace)
    asked = replace(question.settings, kv_cache_dtype=kv_cache_dtype)
    answer = answer_question(spec, Question(longest, asked, RequestLengths()), [gpu], question.engine, measured)
    (deployment,), (speed,) = answer.deployments, answer.speeds
    if not deployment.fits or speed is None:
        hint = f"use more GPUs, such as --gpu {2 * gpu.num_gpus}x{gpu.gpu.id}, or a shorter --max-model-len"
        reason = deployment.limit or "it has no room for a request"
        raise KvplanError(f"{spec.served_id} does not fit on {deployment.counted_gpu}: {reason}.", hint=hint)
    settings = settings_on(gpu, spec, replace(asked, max_model_len=longest), question.engine)
    shares = trace.survey.block_tokens > 0
    layout = cache_layout(spec, gpu.gpu, settings, question.engine.version, shares_prefixes=shares)
    return _PlacedReplica(deployment, speed, layout)


def _context_of(spec: ModelSpec, trace: _Trace) -> int:
    """Return the model's longest context, or where that is not known the trace's longest request."""
    return spec.longest_context or max(each.num_prompt_tokens + each.num_output_tokens for each in trace.requests)


def _measured(measure: TierMeasure, sizes: Sequence[int], progress: Progress, where: str) -> Iterator[TierWorth]:
    for number, size in enumerate(sizes):
        progress(f"{where}: size {number + 1} of {len(sizes)}")
        yield measure.worth(size)


def _table_sizes(layout: CacheLayout, needed: int, usual: int, asked: int | None) -> list[int]:
    """Return powers of two in GiB, from the last below the pool's blocks to the first that keeps everything, what nodes
    usually have where that is less, and the size that is asked about."""
    largest = max((needed - 1) // GIB, 0).bit_length()
    smallest = max((layout.num_blocks * layout.host_block_bytes // GIB).bit_length() - 1, largest - _STEPS, 0)
    sizes = {GIB << power for power in range(min(smallest, largest), largest + 1)}
    if usual < GIB << largest:
        sizes.add(usual // GIB * GIB)
    return sorted(sizes if asked is None else sizes | {asked})


def _pool_worth(curve: CacheCurve, prefill: PrefillTime) -> TierWorth:
    layout = curve.layout
    hits = curve.hits(layout.num_blocks)
    found = sum(hit.num_tokens for hit in hits)
    saved = sum(prefill.seconds(hit.num_tokens) for hit in hits)
    return TierWorth(layout.pool_bytes, found, found, saved, 0.0, 0.0, curve.best_share(layout.num_blocks))


def _below_host(measure: TierMeasure, host: TierWorth, link: TierLink, size: int | None) -> TierWorth | None:
    """Return what drives bring below host memory of the size asked for."""
    if size is None:
        return None
    layout = measure.curve.layout
    above = [
        max(pair, key=lambda hit: hit.num_tokens)
        for pair in zip(measure.above, measure.curve.hits(layout.blocks_of(host.size_bytes)), strict=True)
    ]
    return replace(measure, above=tuple(above), link=link).worth(size)


def _distances(curve: CacheCurve, layout: CacheLayout) -> Iterator[Distances]:
    """Yield, of the tokens that are used again, within how many seconds and bytes a share of them is."""
    seconds: list[tuple[float, int]] = []
    blocks: list[tuple[int, int]] = []
    for cache in curve.caches:
        chains = cache.chains
        for each in cache.reuse.stretches:
            count = each.end - each.first
            seconds.append((chains[each.request].sent - chains[each.last].sent, count))
            blocks.append((each.above + count, count))
    if not seconds:
        return
    for share in SHOWN_SHARES:
        needed = _quantile(blocks, share) * layout.weights.unit * layout.host_block_bytes
        yield Distances(share, _quantile(seconds, share), int(needed))


def _quantile(weighted: list[tuple[float, int]] | list[tuple[int, int]], share: float) -> float:
    ordered = sorted(weighted)
    sums = list(accumulate(weight for _, weight in ordered))
    return ordered[bisect_left(sums, share * sums[-1])][0]
