"""The whole of it: files of results in, coefficients with their errors and a measured profile out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvplan.calibrate.results.deployment import Deployed
from kvplan.calibrate.results.learning import Learned, learn
from kvplan.calibrate.results.matching import Matched, match
from kvplan.calibrate.results.reading import read_results
from kvplan.calibrate.results.served import ServedDeployment
from kvplan.catalog.devices.kernel_tables import read_kernel_tables
from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.estimate.speed.steps.rank_step import KernelSpeed
from kvplan.sweeps.forecast.step_cost import guess_speed


@dataclass(frozen=True, slots=True)
class ResultCalibration:
    """paths: what was read. prior: where coefficients come from that the results do not determine."""

    paths: tuple[Path, ...]
    matched: Matched
    prior: Prior
    learned: Learned


def calibrate_results(paths: Sequence[Path], options: ServedDeployment) -> ResultCalibration:
    """KvplanError for files that cannot be read, hold nothing served, or mix devices or engines."""
    found = match(read_results(paths), options)
    prior = prior_of(found.first)
    matched = found.believing(prior.kernels)
    return ResultCalibration(tuple(paths), matched, prior, learn(matched, prior.kernels.base))


@dataclass(frozen=True, slots=True)
class Prior:
    """Coefficients, and in words where they come from. groups: those beside the base, as a profile stores them."""

    kernels: KernelSpeed
    source: str
    groups: Mapping[str, Any]


def prior_of(of: Deployed) -> Prior:
    """The GPU's measured kernels, else usual shares of its data sheet; of a CPU, what small machines reach."""
    gpu, dtype = of.gpu, of.work.compute_dtype
    if gpu.is_cpu:
        return Prior(KernelSpeed(guess_speed("cpu")), "what CPUs usually reach", {})
    profile = MeasuredProfiles(read_kernel_tables()).for_gpu(gpu, of.work.speed_format, of.engine)
    if profile is None:
        return Prior(KernelSpeed(guess_speed("cuda", gpu, dtype)), f"usual shares of {gpu.id}'s data sheet", {})
    found = KernelSpeed.from_json(profile.speeds)
    # another format than the profile's multiplies as much faster or slower as the data sheet says
    factor = gpu.flops(dtype) / gpu.flops(profile.dtype.removesuffix("-block"))
    base = replace(found.base, flops=found.base.flops * factor)
    groups = {name: group for name, group in profile.speeds.items() if name != "coefficients"}
    return Prior(replace(found, base=base), profile.as_text(), groups)
