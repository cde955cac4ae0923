"""How far vLLM's KV pool can lie from the prediction: a 90 % interval, and what it comes from.

Published start-ups differ from their predictions for a few reasons. Each has one spread (``SPREADS``), a share of the
bytes it applies to or an amount of its own, fitted by tools/startup_ranges.py to all collected start-ups together and
never to one model or row. Independent causes add as squares:

    half of the interval = sqrt(sum over causes of (factor x spread x what it applies to) ** 2)

Settings that the user leaves to the engine are not part of it. How often start-ups from sources that were not fitted to
lie inside stands in docs/accuracy.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import hypot
from typing import Final, Literal

from kvplan.catalog.devices.device_support import compute_capability
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import VllmRelease, vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.vllm.prediction import VllmPrediction, printed_tokens
from kvplan.estimate.vllm.weights import stored_formats
from kvplan.units import GIB

Cause = Literal[
    "exact weights",
    "plain weights",
    "quantized weights",
    "activations",
    "outside torch",
    "several GPUs",
    "unified memory",
    "release or GPU without start-ups",
    "CUDA graphs",
]

CAUSES: Final[dict[Cause, str]] = {
    "exact weights": "weights from the checkpoint at hand: rounding by PyTorch's allocator",
    "plain weights": "weights as loaded: the checkpoint may hold more or less than the config says",
    "quantized weights": "weights as loaded: layers that a quantized checkpoint leaves alone, and its kernels' padding",
    "activations": "peak of the profile run: temporary tensors of kernels and compiled graphs",
    "outside torch": "memory that torch does not see: driver, CUDA context, libraries; the total the driver reports",
    "several GPUs": "buffers of the communication between GPUs (NCCL, all-reduce)",
    "unified memory": "memory that is the host's: what other processes and libraries take counts as well",
    "release or GPU without start-ups": "a release or a GPU of which few or no start-ups have been collected",
    "CUDA graphs": "the release's own estimate of its CUDA graphs, which it subtracts",
}
"""What each cause is, as --explain words it."""

SPREADS: Final[dict[Cause, float]] = {
    "exact weights": 0.00017,
    "plain weights": 0.0015,
    "quantized weights": 0.0078,
    "activations": 0.0106,
    "outside torch": 0.0223,
    "several GPUs": 0.0715,
    "unified memory": 0.82,
    "release or GPU without start-ups": 0.107,
    "CUDA graphs": 0.33,
}
"""Spread of each cause: a share of the bytes it applies to (weights, activations, graphs), or GiB on each GPU.

Fitted on 2026-11-22 to the 129 start-ups in tests/data/vllm_startups.csv that can be predicted, from 46 sources, those
of modified builds left out: weights to 101 logs that print them, graphs to 74, activations to 46, and what these do not
explain to the 70 that are predicted end to end, from 14 sources. Unified memory rests on 2 of them, from one source.
Exact weights are not fitted: 9 of 10 logs of the campaign, whose models' tensors are known, differ by at most 0.03 %
in the weights, which is also the rounding of what they print; times the factor it is this.
"""
FACTOR: Final = 1.8
"""What the combined spread is multiplied by: the quantile of |error| / spread of these 70 start-ups that a further one
would stay below 9 times in 10 (the conformal one, of rank 0.9 x 71)."""


@dataclass(frozen=True, slots=True)
class RangeModel:
    """Spreads as in ``SPREADS`` and their factor. The shipped one is the default; held-out checks fit their own."""

    spreads: Mapping[Cause, float]
    factor: float

    def half_width_bytes(self, amounts: Mapping[Cause, float]) -> int:
        """Half of the interval where the causes apply to ``amounts`` (``range_amounts``): they add as squares."""
        return int(self.factor * hypot(*(self.spreads[cause] * amount for cause, amount in amounts.items())) * GIB)


SHIPPED: Final = RangeModel(SPREADS, FACTOR)

_CAPABILITIES_WITH_STARTUPS: Final = ((7, 5), (10, 0))
"""(major, minor) of CUDA, from the first to before the second. 51 of the 70 start-ups lie there and in releases that
have start-ups (``has_startups``)."""


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
    num_seqs: tuple[int, int] | None = None
    """Of the largest ``max_num_seqs`` that starts; None where blocks do not limit it."""

    def of_groups(self, num_groups: int) -> KvRange:
        """Of ``num_groups`` alike data-parallel groups, whose tokens and concurrency add up."""
        return replace(
            self,
            tokens=(num_groups * self.tokens[0], num_groups * self.tokens[1]),
            concurrency=(num_groups * self.concurrency[0], num_groups * self.concurrency[1]),
        )


def range_amounts(spec: ModelSpec, gpu: GpuProfile, found: VllmPrediction) -> dict[Cause, float]:
    """What each cause applies to on the smallest rank, in GiB; 1 for causes with an amount of their own.

    ``found`` is the prediction for ``spec`` on ``gpu``. Causes that do not apply are left out.
    """
    rank, settings = found.rank, found.settings.serving
    release, layout = vllm_release(found.version), ParallelLayout.of(settings)
    amounts: dict[Cause, float] = {
        _weights_cause(spec, settings.quantization): rank.weight_bytes / GIB,
        "activations": rank.activation.peak_bytes / GIB,
        "outside torch": 1.0,
        "several GPUs": float(_communicates(spec, layout)),
        "unified memory": float(gpu.unified_memory),
        "release or GPU without start-ups": float(not _has_startups(gpu, release)),
        "CUDA graphs": rank.subtracted_graph_bytes / GIB,
    }
    return {cause: amount for cause, amount in amounts.items() if amount}


def _weights_cause(spec: ModelSpec, requested: str) -> Cause:
    if spec.checkpoint is not None:
        return "exact weights"
    return "plain weights" if stored_formats(spec, requested).quantization is None else "quantized weights"


def _communicates(spec: ModelSpec, layout: ParallelLayout) -> bool:
    ranks = layout.tensor_parallel_size * layout.pipeline_parallel_size
    return ranks > 1 or (spec.is_mixture and layout.exchanges_tokens)


def _has_startups(gpu: GpuProfile, release: VllmRelease) -> bool:
    oldest, newer = _CAPABILITIES_WITH_STARTUPS
    return release.has_startups and oldest <= compute_capability(gpu) < newer


def kv_pool_low_bytes(spec: ModelSpec, gpu: GpuProfile, found: VllmPrediction) -> int:
    """The low end of the KV pool on one GPU, which about 19 of 20 start-ups exceed. Never negative."""
    return max(found.rank.available_kv_bytes - SHIPPED.half_width_bytes(range_amounts(spec, gpu, found)), 0)


def kv_range(spec: ModelSpec, gpu: GpuProfile, found: VllmPrediction, model: RangeModel = SHIPPED) -> KvRange:
    """The interval around ``found``, the prediction for ``spec`` on ``gpu``."""
    amounts = range_amounts(spec, gpu, found)
    available, half = found.rank.available_kv_bytes, model.half_width_bytes(amounts)
    low = max(available - half, 0)
    high = max(min(available + half, found.rank.requested_bytes), 0)
    few, many = low // found.bytes_per_block, high // found.bytes_per_block
    causes = [RangeCause(cause, model.half_width_bytes({cause: amount})) for cause, amount in amounts.items()]
    return KvRange(
        pool_bytes=(low, high),
        tokens=(_tokens(found, few), _tokens(found, many)),
        concurrency=(few / found.blocks_per_request, many / found.blocks_per_request),
        causes=tuple(sorted(causes, key=lambda each: -each.num_bytes)),
        num_seqs=None if found.most_num_seqs is None else (few, many),
    )


def sure_num_seqs(spec: ModelSpec, gpu: GpuProfile, found: VllmPrediction) -> int | None:
    """The largest ``max_num_seqs`` that about 19 of 20 start-ups take; None where blocks do not limit it."""
    if found.most_num_seqs is None:
        return None
    return kv_pool_low_bytes(spec, gpu, found) // found.bytes_per_block


def _tokens(found: VllmPrediction, num_blocks: int) -> int:
    settings, release = found.settings.serving, vllm_release(found.version)
    return printed_tokens(found.rank.blocks, num_blocks, num_blocks / found.blocks_per_request, settings, release)
