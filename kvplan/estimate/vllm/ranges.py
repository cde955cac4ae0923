"""How far vLLM's KV pool can lie from the prediction: a 90 % interval, and what it comes from.

Published start-ups differ from their predictions for a few reasons. Each has one spread, a share of the bytes it
applies to or an amount of its own, fitted by tools/startup_ranges.py to all collected start-ups together and never to
one model or row. Independent causes add as squares:

    half of the interval = factor x sqrt(sum over causes of (spread x what it applies to) ** 2)

Two causes are what kvplan does not know: a GPU family and age of vLLM with few start-ups, and a kind of deployment
(format of the weights, kind of layers, drafter, ...) that few sources have published. They shrink as start-ups of the
kind are compared, and are as large as errors were on start-ups of sources that were left out. Where nobody has
published how an age of vLLM lays out a kind of cache, the tokens that a byte holds are uncertain by a further factor.

The interval is of the start that was asked about: a first one, which compiles, or with ``warm_start`` a later one. What
a later one has more (kvplan.estimate.vllm.compilation) is known in bytes and stands beside it: an interval over both
would be several times as wide and say nothing of either. The low end of a first start allows for what some releases
may lose, since nothing that can be asked for tells which start does.

Settings that the user leaves to the engine are not part of it. How often start-ups from sources that were not fitted to
lie inside stands in docs/accuracy.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import hypot
from typing import Final, Literal

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.catalog.startup_errors import Evidence, StartupErrors, startup_errors
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.vllm.compilation import compiles, lookup_bytes
from kvplan.estimate.vllm.kinds import LAYOUT, OLDER, PLACE, UNIFIED, Kinds, deployment_kinds, is_plain
from kvplan.estimate.vllm.leftovers import is_replayed
from kvplan.estimate.vllm.prediction import RankMemory, VllmPrediction, printed_tokens
from kvplan.estimate.vllm.weights import stored_formats
from kvplan.units import GIB

Cause = Literal[
    "exact weights",
    "plain weights",
    "quantized weights",
    "activations",
    "encoder",
    "outside torch",
    "newer releases",
    "several GPUs",
    "unified memory",
    "GPU and release",
    "kind of deployment",
    "CUDA graphs",
]

CAUSES: Final[dict[Cause, str]] = {
    "exact weights": "weights from the checkpoint at hand: rounding by PyTorch's allocator",
    "plain weights": "weights as loaded: the checkpoint may hold more or less than the config says",
    "quantized weights": "weights as loaded: layers that a quantized checkpoint leaves alone, and its kernels' padding",
    "activations": "peak of the profile run: temporary tensors of kernels and compiled graphs",
    "encoder": "peak of the profile run: the encoder's inside, which depends on its kernels",
    "outside torch": "memory that torch does not see: driver, CUDA context, libraries; the total the driver reports",
    "newer releases": "releases that set graphs aside beforehand (0.21 on): start-ups of one model differ by as much",
    "several GPUs": "buffers of the communication between GPUs (NCCL, all-reduce)",
    "unified memory": "memory that is the host's: what other processes and libraries take counts as well",
    "GPU and release": "a GPU family and age of vLLM of which few or no start-ups have been compared",
    "kind of deployment": "a kind of weights, layers or settings of which few or no start-ups have been compared",
    "CUDA graphs": "the release's own estimate of its CUDA graphs, which it subtracts",
}
"""What each cause is, as --explain words it."""

SHARES: Final[frozenset[Cause]] = frozenset(CAUSES) - {
    "outside torch",
    "newer releases",
    "several GPUs",
    "unified memory",
}
"""Causes whose spread is a share of bytes; the others' are GiB on each GPU."""

WELL_COMPARED: Final = 20
"""Start-ups of a GPU family and an older age of vLLM from which on their own errors say how far the next may be off.

Not of newer releases: there start-ups of one source err together, and twenty are of a handful of sources.
"""
_HALVED_AFTER: Final = 5
"""Start-ups of a GPU family and age of vLLM after which its uncertainty is half of one that nobody has compared."""

FIRST_CAPTURE_GIB: Final = 0.4
"""The part of graphs' memory that does not follow the number of sizes (kvplan.estimate.vllm.budget)."""

Group = Literal[
    "well compared",
    "unified memory",
    "rare kind",
    "audio inputs",
    "older releases",
    "states, older releases",
    "plain, newer releases",
    "states, newer releases",
    "compressed, newer releases",
    "newer releases",
]
"""Groups of deployments whose errors were compared with each other, each with a factor of its own.

Errors say something about a further start-up where the same is unknown of it. Releases that set graphs aside (0.21 and
newer) err by what they estimate of them, which older ones do not subtract at all: the two ages have nothing to learn
from each other's outliers. Nor do newer start-ups of plain models from those of quantized, drafted or seeing ones,
whose weights and encoders have been wrong by a GiB. Of older releases both are too few, but for models with recurrent
states. These try kernels out in the profile run, which spill by the compiler's whim (``local_memory``): first sights of
newer and of older ones (X011, X013, X040, N002, N004) were 1 to 2.5 GiB off. Compressed attention (DeepSeek V4) keeps
its caches in other ways from release to release: first sights of it were 4 to 13 GiB off, from which others have
nothing to learn. Models with audio inputs have further towers, and tables of inputs for each layer, of which others
have nothing (Gemma 3n, Gemma 4 E2B and E4B).
"""


@dataclass(frozen=True, slots=True)
class Standing:
    """How well a kind of deployment is known: by how many start-ups, of how many sources.

    ``num_startups``: of its GPU family and age of vLLM. ``rarest``: the kind, of all aspects but that age, that the
    fewest sources have published a start-up of, and ``num_sources`` are these. ``unseen_layout``: the kind of
    layers, cache or drafter that nobody has published a start-up of in this age of vLLM; None where there is none.
    """

    group: Group
    num_startups: int
    rarest: str
    num_sources: int
    unseen_layout: str | None

    @property
    def warning(self) -> str | None:
        """What nobody has compared, in a sentence; None where start-ups of every kind were."""
        if self.unseen_layout is not None:
            return (
                f"No start-up with {self.unseen_layout} in this age of vLLM has been compared: its blocks may be laid "
                "out otherwise, which the range of the tokens allows for."
            )
        if self.num_sources == 0:
            return f"No start-up with {self.rarest} has been compared: the range is wide for that."
        return None

    @property
    def sentence(self) -> str:
        """How many start-ups stand behind the interval."""
        startups = f"{self.num_startups or 'No'} start-up{'' if self.num_startups < 2 else 's'}"
        place = f"{startups} of this GPU family and age of vLLM {'was' if self.num_startups < 2 else 'were'} compared"
        if self.warning is not None:
            return f"{place}. {self.warning}"
        sources = "source" if self.num_sources == 1 else "sources"
        return f"{place}; {self.num_sources} {sources} had {self.rarest}."


@dataclass(frozen=True, slots=True)
class RangeCause:
    """One cause of the width. ``num_bytes``: half of the interval on one GPU if it were the only one."""

    cause: Cause
    num_bytes: int

    @property
    def sentence(self) -> str:
        return CAUSES[self.cause]


@dataclass(frozen=True, slots=True)
class KvRange:
    """The 90 % interval of a deployment's KV cache, each (low, high), with the prediction inside.

    ``pool_bytes`` is of one GPU; tokens and concurrency are of one data-parallel group. ``causes``: largest first.
    """

    pool_bytes: tuple[int, int]
    tokens: tuple[int, int]
    concurrency: tuple[float, float]
    causes: tuple[RangeCause, ...]
    known: Standing | None = None
    """How well its kind is known; None for kvplan's own engine, whose pool is exact or unknown."""
    num_seqs: tuple[int, int] | None = None
    """Of the largest ``max_num_seqs`` that starts; None where blocks do not limit it."""
    later_start_bytes: int = 0
    """What a later start, which finds its kernels compiled, has more on each GPU than the interval says."""

    def of_groups(self, num_groups: int) -> KvRange:
        """Return the range of ``num_groups`` alike data-parallel groups, whose tokens and concurrency add up."""
        return replace(
            self,
            tokens=(num_groups * self.tokens[0], num_groups * self.tokens[1]),
            concurrency=(num_groups * self.concurrency[0], num_groups * self.concurrency[1]),
        )


def standing(kinds: Kinds, evidence: Evidence) -> Standing:
    """Return how well ``evidence`` knows deployments of these kinds."""
    return _standing(tuple(kinds.items()), evidence)


@lru_cache(maxsize=4096)
def _standing(kinds: tuple[tuple[str, str], ...], evidence: Evidence) -> Standing:
    named, whole = dict(kinds), evidence.end_to_end
    num_startups = whole.alike({aspect: named[aspect] for aspect in PLACE}).num_startups
    # The age of vLLM has a group of its own; a family of GPUs may be one that nobody has published in any age.
    sources = {_in_words(*each): whole.alike(dict([each])).num_sources for each in kinds if each[0] != "release"}
    rarest = min(sources, key=sources.__getitem__)
    unseen_layouts = (
        named[aspect]
        for aspect in LAYOUT
        if not evidence.of_layouts.alike({"release": named["release"], aspect: named[aspect]}).startups
    )
    unseen = next(unseen_layouts, None)
    group: Group = "plain, newer releases" if is_plain(named) else "newer releases"
    if named["attention"] == "recurrent states":
        group = "states, newer releases"
    elif named["attention"] == "compressed attention":
        group = "compressed, newer releases"
    if named["release"] in OLDER:
        group = "states, older releases" if group.startswith("states") else "older releases"
    if named["GPU"] == UNIFIED:
        group = "unified memory"
    elif unseen is not None or sources[rarest] < 2:
        group = "rare kind"
    elif "audio" in named["inputs"]:
        group = "audio inputs"
    elif group == "older releases" and num_startups >= WELL_COMPARED:
        group = "well compared"
    return Standing(group, num_startups, rarest, sources[rarest], unseen)


def _in_words(aspect: str, kind: str) -> str:
    return f"{kind} GPUs" if aspect == "GPU" else kind


def range_amounts(spec: ModelSpec, gpu: GpuProfile, predicted: VllmPrediction, known: Standing) -> dict[Cause, float]:
    """Return what each cause applies to on the smallest rank, in GiB; 1 for causes with an amount of their own.

    ``predicted`` is the prediction for ``spec`` on ``gpu``. Causes that do not apply are left out.
    """
    rank, settings = predicted.rank, predicted.settings.serving
    layout = ParallelLayout.of(settings)
    profiled: Cause = "encoder" if rank.activation.decided_by == "encoder" else "activations"
    amounts: dict[Cause, float] = {
        _weights_cause(spec, settings.quantization): rank.weight_bytes / GIB,
        profiled: rank.activation.peak_bytes / GIB,
        "outside torch": 1.0,
        "newer releases": float(vllm_release(predicted.version).graphs_in_budget and not gpu.unified_memory),
        "several GPUs": float(_communicates(spec, layout)),
        "unified memory": float(gpu.unified_memory),
        "GPU and release": rank.requested_bytes / GIB * _HALVED_AFTER / (_HALVED_AFTER + known.num_startups),
        "kind of deployment": rank.requested_bytes / GIB / (1 + known.num_sources),
        "CUDA graphs": _graph_amount(rank),
    }
    return {cause: amount for cause, amount in amounts.items() if amount}


def _graph_amount(rank: RankMemory) -> float:
    """GiB of graphs that are subtracted; the first capture costs as much however few sizes follow it."""
    return max(rank.subtracted_graph_bytes / GIB, FIRST_CAPTURE_GIB) if rank.subtracted_graph_bytes else 0.0


def _weights_cause(spec: ModelSpec, requested: str) -> Cause:
    if spec.checkpoint is not None:
        return "exact weights"
    return "plain weights" if stored_formats(spec, requested).quantization is None else "quantized weights"


def _communicates(spec: ModelSpec, layout: ParallelLayout) -> bool:
    ranks = layout.tensor_parallel_size * layout.pipeline_parallel_size
    return ranks > 1 or (spec.is_mixture and layout.exchanges_tokens)


def half_width_bytes(amounts: Mapping[Cause, float], errors: StartupErrors, factor: float) -> int:
    """Return half of the interval where the causes apply to ``amounts`` (``range_amounts``): they add as squares."""
    return int(factor * hypot(*(errors.spreads[cause] * amount for cause, amount in amounts.items())) * GIB)


def warm_gain_bytes(predicted: VllmPrediction) -> int:
    """Return what a start that finds its kernels compiled has more for the pool than the first start, as predicted."""
    rank = predicted.rank
    if rank.given_pool_bytes is not None:
        return 0
    return rank.activation.peak_bytes - rank.activation.warm_peak_bytes + rank.pinned_bytes


def split_loss_bytes(spec: ModelSpec, gpu: GpuProfile, predicted: VllmPrediction) -> int:
    """Return what a first start may have less than predicted where its release counts freed pieces that were split.

    None where the order of allocations is replayed, which decides it (``leftovers.is_replayed``). Where no lookup is
    compiled it is the buffer between the runs of timed kernels: on two RTX 4090 that are not there gpt-oss-20b loses 64
    of 72 MiB in 0.29.0, Qwen3-8B and Qwen3-32B-AWQ nothing.
    """
    release, settings = vllm_release(predicted.version), predicted.settings.serving
    if predicted.rank.given_pool_bytes is not None or not release.counts_split_pieces or settings.expandable_segments:
        return 0
    if is_replayed(spec, gpu, settings, release) or not compiles(gpu, settings, release):
        return 0
    return lookup_bytes(spec, gpu, settings, release)[0] or gpu.l2_cache_bytes


def possible_loss_bytes(spec: ModelSpec, gpu: GpuProfile, predicted: VllmPrediction) -> int:
    """Return what may be missing of the predicted pool and is no error: a split piece, spills of kernels unread."""
    if predicted.rank.given_pool_bytes is not None:
        return 0
    return split_loss_bytes(spec, gpu, predicted) + predicted.rank.local.possible_bytes


def kv_pool_low_bytes(spec: ModelSpec, gpu: GpuProfile, predicted: VllmPrediction) -> int:
    """Return the low end of the KV pool on one GPU, which about 19 of 20 start-ups exceed. Never negative."""
    errors = startup_errors()
    known = standing(deployment_kinds(spec, gpu, predicted), errors.evidence)
    half = half_width_bytes(range_amounts(spec, gpu, predicted, known), errors, errors.factors[known.group])
    return max(predicted.rank.available_kv_bytes - possible_loss_bytes(spec, gpu, predicted) - half, 0)


def kv_range(
    spec: ModelSpec,
    gpu: GpuProfile,
    predicted: VllmPrediction,
    errors: StartupErrors | None = None,
    explained: frozenset[Cause] = frozenset(),
) -> KvRange:
    """Return the interval around ``predicted``, the prediction for ``spec`` on ``gpu``; by default with what ships.

    ``explained``: causes that a log of the deployment's own leaves nothing of. It also shows what its start lost.
    """
    errors = startup_errors() if errors is None else errors
    known = standing(deployment_kinds(spec, gpu, predicted), errors.evidence)
    factor, applied = errors.factors[known.group], range_amounts(spec, gpu, predicted, known)
    amounts = {cause: amount for cause, amount in applied.items() if cause not in explained}
    available, half = predicted.rank.available_kv_bytes, half_width_bytes(amounts, errors, factor)
    loss = 0 if explained else possible_loss_bytes(spec, gpu, predicted)
    low, high = max(available - loss - half, 0), max(min(available + half, predicted.rank.requested_bytes), 0)
    few, many = low // predicted.bytes_per_block, high // predicted.bytes_per_block
    layout = 1.0 if known.unseen_layout is None else errors.layout_factor
    causes = [RangeCause(cause, half_width_bytes({cause: amount}, errors, factor)) for cause, amount in amounts.items()]
    return KvRange(
        pool_bytes=(low, high),
        tokens=(int(_tokens(predicted, few) / layout), int(_tokens(predicted, many) * layout)),
        concurrency=(few / predicted.blocks_per_request / layout, many / predicted.blocks_per_request * layout),
        causes=tuple(sorted(causes, key=lambda each: -each.num_bytes)),
        known=known,
        num_seqs=None if predicted.most_num_seqs is None else (few, many),
        later_start_bytes=warm_gain_bytes(predicted),
    )


def sure_num_seqs(spec: ModelSpec, gpu: GpuProfile, predicted: VllmPrediction) -> int | None:
    """Return the largest ``max_num_seqs`` that about 19 of 20 start-ups take; None where blocks do not limit it."""
    if predicted.most_num_seqs is None:
        return None
    return kv_pool_low_bytes(spec, gpu, predicted) // predicted.bytes_per_block


def _tokens(predicted: VllmPrediction, num_blocks: int) -> int:
    settings, release = predicted.settings.serving, vllm_release(predicted.version)
    concurrency = num_blocks / predicted.blocks_per_request
    return printed_tokens(predicted.rank.blocks, num_blocks, concurrency, settings, release)
