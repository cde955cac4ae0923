"""Coefficients that best explain the points: least squares of log(fitted / measured), robust to outliers.

Dense models come first: overheads, bandwidths, speeds, all-reduces. Then, with these held, what mixtures and latent
attention cost. The quantities of a step are those that predictions use (``rank_step``), as arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from kernel_speeds.sampling import Point
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.models import resolve_model
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.steps.collectives import LinkEfficiency, collective_cost
from kvplan.estimate.speed.steps.measured_clock import rank_step
from kvplan.estimate.speed.steps.rank_step import (
    ExpertSpeed,
    KernelSpeed,
    LatentSpeed,
    LinkSpeed,
    RankStep,
    step_seconds,
)
from kvplan.estimate.speed.steps.step_time import Speed
from kvplan.estimate.speed.steps.work import ModelWork, kv_read_bytes, model_work
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.estimate.weights import named_format
from kvplan.settings import ServingSettings

_NOISE = 0.05
"""Errors beyond 5 % count less and less."""
_RANKS = (2, 4, 8)
_PLAIN = LinkEfficiency(share=1.0, message_seconds=1.0, sends_to_chosen=False)


@dataclass(frozen=True, slots=True)
class Sampled:
    """The points of one fit as arrays; ``all_reduces`` by number of ranks, and bytes over the link's bandwidth."""

    points: tuple[Point, ...]
    steps: RankStep
    all_reduces: dict[int, np.ndarray]
    link_seconds: np.ndarray
    seconds: np.ndarray

    def of(self, keep: Sequence[bool]) -> Sampled:
        """Those points alone."""
        kept = np.array(keep)
        steps = RankStep(**{name: getattr(self.steps, name)[kept] for name in RankStep._fields})
        points = tuple(point for point, is_kept in zip(self.points, keep, strict=True) if is_kept)
        reduces = {ranks: counts[kept] for ranks, counts in self.all_reduces.items()}
        return Sampled(points, steps, reduces, self.link_seconds[kept], self.seconds[kept])


def sampled(points: Sequence[Point], gpu: GpuProfile, name: str) -> Sampled:
    """What each point asks of a rank, in format ``name``."""
    works = {
        key: _work(*key, gpu, name) for key in dict.fromkeys((p.model.name, p.tensor_parallel_size) for p in points)
    }
    steps, counts, links = [], [], []
    for point in points:
        work, kv_bytes_per_token = works[point.model.name, point.tensor_parallel_size]
        steps.append(
            rank_step(
                work,
                tokens=point.tokens,
                rows=point.tokens,
                sequences=point.sequences,
                sampled=point.sequences,
                kv_bytes=point.kv_tokens * kv_bytes_per_token,
                pairs=point.pairs,
                expert_tokens=point.tokens,
            )
        )
        cost = collective_cost(work, gpu, _PLAIN)
        counts.append(cost.fixed_seconds)
        links.append(point.tokens * cost.seconds_per_row)
    arrays = {name: np.array([float(getattr(step, name)) for step in steps]) for name in RankStep._fields}
    sizes = np.array([point.tensor_parallel_size for point in points])
    reduces = {ranks: np.where(sizes == ranks, np.array(counts), 0.0) for ranks in _RANKS}
    seconds = np.array([point.seconds for point in points])
    return Sampled(tuple(points), RankStep(**arrays), reduces, np.array(links), seconds)


def _work(name: str, size: int, gpu: GpuProfile, speed_format: str) -> tuple[ModelWork, float]:
    """(the work of a rank, bytes of K and V per token): as a plan would find them, with K and V in 16 bits."""
    spec = resolve_model(name)
    formats = {"fp8": "fp8", "fp8-block": "fp8-block", "fp4": "nvfp4"}
    spec = replace(spec, quantization=named_format(formats.get(speed_format, "none")), checkpoint=None)
    settings = ServingSettings(
        tensor_parallel_size=size, max_model_len=2048, dtype="bfloat16", kv_cache_dtype="bfloat16"
    )
    weights = predict_vllm(spec, gpu, settings).rank.weight_bytes
    layout = ParallelLayout.of(settings)
    cache = CacheSettings(model_dtype="bfloat16", kv_dtype="bfloat16", tensor_parallel_size=size)
    return model_work(spec, weights, "bfloat16", layout), kv_read_bytes(spec, 4096, cache) / 4096


def predicted(speed: KernelSpeed, data: Sampled) -> np.ndarray:
    """Seconds of every point."""
    links, seconds = speed.links, step_seconds(speed, data.steps)
    if links is None:  # of single GPUs
        return np.asarray(seconds)
    seconds = seconds + data.link_seconds / links.share
    for ranks, counts in data.all_reduces.items():
        seconds = seconds + counts * links.all_reduce_seconds[ranks]
    return np.asarray(seconds)


def deviations(speed: KernelSpeed, data: Sampled) -> np.ndarray:
    """fitted / measured - 1 of every point."""
    return predicted(speed, data) / data.seconds - 1


def fit_dense(data: Sampled, gpu: GpuProfile, speed_format: str) -> KernelSpeed:
    """Coefficients without mixtures and latent attention, from points of dense models."""
    bandwidth, flops = gpu.memory_bandwidth_bytes_per_second, gpu.flops(speed_format.removesuffix("-block"))
    start = [1e-5, 4e-5, 1e-6, 0.85 * bandwidth, 0.7 * flops, 0.9 * bandwidth, 0.4 * flops, 2.0, 4e-6, 5e-6, 6e-6, 0.5]
    low = [1e-7, 1e-6, 1e-9, 0.2 * bandwidth, 0.1 * flops, 0.2 * bandwidth, 0.03 * flops, 1.0, 5e-7, 5e-7, 5e-7, 0.02]
    high = [2e-3, 5e-4, 2e-4, bandwidth, flops, bandwidth, flops, 8.0, 1e-4, 1e-4, 1e-4, 1.0]
    return _solved(data, start, low, high, _dense)


def _dense(x: np.ndarray) -> KernelSpeed:
    values = [float(value) for value in x]
    base = Speed(*values[:7], sharpness=values[7])
    return KernelSpeed(base, links=LinkSpeed(dict(zip(_RANKS, values[8:11], strict=True)), values[11]))


def fit_experts(data: Sampled, dense: KernelSpeed, gpu: GpuProfile, speed_format: str) -> KernelSpeed:
    """``dense`` with what mixtures cost, from points of mixtures.

    Searched is what a mixture's layer costs in all: it has two dense products fewer than the layers of a dense model.
    """
    bandwidth, flops = gpu.memory_bandwidth_bytes_per_second, gpu.flops(speed_format.removesuffix("-block"))
    own = dense.base.layer_seconds

    def speed_of(x: np.ndarray) -> KernelSpeed:
        layer, *others = (float(value) for value in x)
        return replace(dense, experts=ExpertSpeed(layer - own, *others))

    return _solved(
        data,
        [own + 3e-5, 0.6 * bandwidth, 0.4 * flops, 0.3 * bandwidth, 1.5],
        [1e-6, 0.05 * bandwidth, 0.02 * flops, 0.02 * bandwidth, 1.0],
        [1e-3, bandwidth, flops, 100 * bandwidth, 8.0],
        speed_of,
    )


def fit_latent(data: Sampled, known: KernelSpeed, gpu: GpuProfile) -> KernelSpeed:
    """``known`` with what latent attention costs, from points of models that have it."""
    bandwidth, flops = gpu.memory_bandwidth_bytes_per_second, gpu.flops("bfloat16")
    return _solved(
        data,
        [1e-4, 0.6 * bandwidth, 0.3 * flops, 1e-6],
        [1e-6, 0.05 * bandwidth, 0.02 * flops, 1e-9],
        [1e-3, bandwidth, flops, 1e-4],
        lambda x: replace(known, latent=LatentSpeed(*(float(value) for value in x))),
    )


def _solved(
    data: Sampled,
    start: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    speed_of: Callable[[np.ndarray], KernelSpeed],
) -> KernelSpeed:
    """The best values between ``low`` and ``high``, searched in logarithms."""

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.log(predicted(speed_of(np.exp(x)), data) / data.seconds)

    bounds = (np.log(low), np.log(high))
    inside = np.clip(np.log(start), bounds[0] + 1e-9, bounds[1] - 1e-9)
    found = least_squares(residuals, inside, bounds=bounds, loss="soft_l1", f_scale=_NOISE, max_nfev=300)
    return speed_of(np.exp(found.x))
