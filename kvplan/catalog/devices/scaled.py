"""Speeds of a GPU without tables of its own: those of one with the same compute capability, scaled by the data sheets.

Kernels are compiled for a compute capability, so GPUs that share it run the same ones; what differs is how fast memory
and multipliers are. Bandwidths grow with the data sheet's, operations per second with those of the format. Overheads
stay as they are, and so does what a small all-reduce takes where both GPUs have NVLink or both have none.

Multipliers that are few beside everything else are kept busy: an H20 has 0.15 of an H100's, and 0.59 to 1.2 of all the
rest. FlashAttention 3 reaches 126 TFLOP/s of its 148 (Dao-AILab/flash-attention issue 1310), 0.4 to 0.6 of an H100's,
and FlashMLA 125 to 130 (deepseek-ai/FlashMLA issue 30). Experts in 8 bits reach as much of their 296, beside reading
them (``estimate.speed.steps.kernels.tile_rows``). Few rows are multiplied as many there, which is told there too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile, find_gpu
from kvplan.catalog.devices.measured_profile import MeasuredProfile

_FEW: Final = 0.25
"""Of the operations per byte of memory's bandwidth of the GPU that was measured."""
_REACHED_BY_FEW: Final = 0.85


def nearest_profiles(profiles: Iterable[MeasuredProfile], gpu: GpuProfile) -> list[MeasuredProfile]:
    """Return the profiles of kernels on the GPU most like ``gpu`` with its compute capability, scaled to it; empty
    without one.

    A MIG slice is most like its GPU. Otherwise memory bandwidth and 16-bit speed differ by the smallest factors.
    ``gpu`` itself does not count.
    """
    if gpu.is_cpu or gpu.vendor != "nvidia":
        return []
    alike: dict[str, list[MeasuredProfile]] = {}
    for profile in profiles:
        if profile.source == "kernels":
            other = find_gpu(profile.device_name)
            if other.compute_capability == gpu.compute_capability and other.id != gpu.id:
                alike.setdefault(other.id, []).append(profile)
    if not alike:
        return []
    whole = alike.get(gpu.part_of or "")
    if whole is not None:
        return [scaled(profile, gpu) for profile in whole]
    nearest = find_gpu(min(alike, key=lambda name: _distance(find_gpu(name), gpu)))
    return [scaled(profile, gpu) for profile in alike[nearest.id]]


def _distance(one: GpuProfile, other: GpuProfile) -> float:
    memory = one.memory_bandwidth_bytes_per_second / other.memory_bandwidth_bytes_per_second
    return abs(math.log(memory)) + abs(math.log(one.flops("bfloat16") / other.flops("bfloat16")))


def scaled(profile: MeasuredProfile, to: GpuProfile) -> MeasuredProfile:
    """``profile`` as it would be on ``to``."""
    of = find_gpu(profile.device_name)
    memory = to.memory_bandwidth_bytes_per_second / of.memory_bandwidth_bytes_per_second
    name = profile.dtype.removesuffix("-block")
    wide = to.flops("bfloat16") / of.flops("bfloat16")
    dense, attention = to.flops(name) / of.flops(name), wide
    factors = dict.fromkeys(("bandwidth", "kv_bandwidth", "routed_bandwidth"), memory)
    factors |= {"flops": dense, "attention_flops": attention}
    experts = None if profile.experts is None else _times(profile.experts, factors)
    if wide < _FEW * memory:
        kept_busy = _REACHED_BY_FEW * to.flops(name)
        wide_kept_busy = _REACHED_BY_FEW * to.flops("bfloat16")
        factors["attention_flops"] = max(attention, wide_kept_busy / profile.coefficients["attention_flops"])
        factors["flops"] = max(dense, kept_busy / profile.coefficients["flops"])
        if experts is not None:
            experts = MappingProxyType({**experts, "flops": max(experts["flops"], kept_busy)})
    has_same_links = (of.nvlink_bytes_per_second is None) == (to.nvlink_bytes_per_second is None)
    return replace(
        profile,
        device_name=to.id,
        source="scaled",
        coefficients=_times(profile.coefficients, factors),
        experts=experts,
        latent=None if profile.latent is None else _times(profile.latent, factors),
        links=profile.links if has_same_links else None,
        note=f"{profile.note}, scaled to {to.id} by the data sheets",
    )


def _times(values: Mapping[str, float], factors: Mapping[str, float]) -> Mapping[str, float]:
    return MappingProxyType({name: value * factors.get(name, 1.0) for name, value in values.items()})
