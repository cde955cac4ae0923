"""Weights in few bits that a kernel widens to 16 bits while it multiplies: Marlin's, on data-centre Ampere.

vLLM and SGLang take Marlin for 4- and 8-bit weights beside 16-bit activations, and for 8-bit floats on GPUs without
multipliers for them (pull request 5975 of vllm-project/vllm). It widens the weights again for every 64 rows, and an
A100's ordinary arithmetic is too slow beside its tensor cores to hide that: 140 to 141 TFLOP/s from 64 rows to 4,000,
where products of 16 bits are 1.6 times as fast (pull request 2497, measured with IST-DASLab's bench.py for 4 bits).
Where tensor cores are slower beside the rest there is little to hide: 1.16 and 0.82 times the speed of 16-bit products
on an RTX 6000 Ada with 1,024 and 16,384 rows (issue 21 of IST-DASLab/marlin), so other GPUs are left as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.work import ModelWork

_MARLIN_ENGINES: Final = ("vllm", "sglang")
_DATA_CENTRE_AMPERE: Final = "8.0"
_OF_DATA_SHEET: Final = 141 / 312
"""TFLOP/s that Marlin reached, of an A100's in 16 bits."""


def with_widened_weights(speed: DeviceSpeed, work: ModelWork, gpu: GpuProfile, engine: str) -> DeviceSpeed:
    """``speed`` of 16-bit products with those of ``work``'s weights, where Marlin multiplies them."""
    is_kernel = speed.origin in ("kernels", "scaled")
    if not (is_kernel and engine in _MARLIN_ENGINES and _is_widened(work, gpu)):
        return speed
    most, found = _OF_DATA_SHEET * gpu.flops("bfloat16"), speed.speed
    experts = None if found.experts is None else replace(found.experts, flops=min(found.experts.flops, most))
    base = replace(found.base, flops=min(found.base.flops, most))
    return replace(speed, speed=replace(found, base=base, experts=experts))


def _is_widened(work: ModelWork, gpu: GpuProfile) -> bool:
    lacks_format = work.compute_dtype not in gpu.dense_flops
    return gpu.compute_capability == _DATA_CENTRE_AMPERE and (work.widens_weights or lacks_format)
