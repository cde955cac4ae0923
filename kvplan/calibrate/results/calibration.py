"""The whole of it: files of results in, coefficients with their errors and a measured profile out.

The profile has the schema kvplan.measured/1, and is kept where ``calibrate`` keeps its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kvplan.calibrate.calibration import user_profile_path
from kvplan.calibrate.results.deployment import Deployed
from kvplan.calibrate.results.learning import Learned, learn
from kvplan.calibrate.results.matching import Matched, match
from kvplan.calibrate.results.readers.fields import LARGEST_RESULT_BYTES
from kvplan.calibrate.results.reading import read_results, result_files
from kvplan.calibrate.results.served import ServedDeployment
from kvplan.catalog.devices.kernel_tables import read_kernel_tables
from kvplan.catalog.devices.measured import SCHEMA, MeasuredProfiles
from kvplan.estimate.speed.steps.rank_step import KernelSpeed
from kvplan.estimate.speed.steps.step_time import SPEED_UNITS
from kvplan.files import read_bytes
from kvplan.sweeps.forecast.step_cost import guess_speed


def learned_document(calibration: ResultCalibration) -> dict[str, object]:
    """The profile."""
    matched, learned = calibration.matched, calibration.learned
    device, found = matched.device, learned.identified
    return {
        "schema": SCHEMA,
        "device": {"kind": device.kind, "name": device.name, "num_cores": device.num_cores},
        "dtype": device.dtype,
        "engine": {"name": matched.first.engine, "version": matched.engine_version},
        "versions": {},
        "created": datetime.now(timezone.utc).date().isoformat(),
        "models": [
            {"id": spec.id, "num_parameters": spec.num_parameters, "num_layers": spec.num_layers}
            for spec in matched.models.values()
        ],
        "rows": {
            "used": len(matched.all),
            "settings": learned.num_settings,
            "excluded": matched.excluded,
            "without_lengths": sum(not each.result.has_lengths for each in matched.loads),
        },
        "coefficients": learned.speed.as_json(),
        "units": SPEED_UNITS,
        **calibration.prior.groups,
        "identification": {
            "method": "subset selection by singular values of the figures' derivatives, over noise and prior spread",
            "determined": {name: {"relative_standard_error": found.uncertainty[name]} for name in found.names},
            "others": calibration.prior.source,
            "singular_values": list(found.singular_values),
            "condition": found.condition,
            "noise": learned.noise,
        },
        "fit_errors": {name: asdict(error) for name, error in learned.fitted.items()},
        "errors": {
            "method": "each setting (each tenth of them, where there are more) predicted by a fit to the others; "
            "|predicted / measured - 1|",
            "figures": {name: asdict(error) for name, error in learned.left_out.items()},
        },
        "provenance": [_provenance(path) for path in calibration.paths],
    }


def _provenance(path: Path) -> dict[str, str]:
    """The name and a hash of everything that was read, by which it is recognised."""
    digest = hashlib.sha256()
    for file in result_files(path):
        digest.update(read_bytes(file, LARGEST_RESULT_BYTES))
    return {"name": path.name, "sha256": digest.hexdigest()}


def learned_path(matched: Matched) -> Path:
    """Return a path in the user's profile folder, one file per device, dtype and engine."""
    return user_profile_path(matched.device, matched.first.engine)


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
