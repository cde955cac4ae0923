"""A calibration from rows to profile: fit, held-out error, shares of the peaks, and the file predictions use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

from kvplan.calibrate.peaks import Peaks, PeakShare, expected_speed, find_peaks, shares_of_peaks
from kvplan.calibrate.scoring import (
    fit_trials,
    repetition_spread_pct,
    score_trials,
    split_by_settings,
    summarize_errors,
)
from kvplan.calibrate.trials import (
    NOISY,
    DeviceIdentity,
    MeasuredTrial,
    TrialSet,
    read_trial_sets,
    why_unmeasured,
)
from kvplan.catalog.devices.measured import SCHEMA, HeldOutError, own_folder
from kvplan.errors import KvplanError
from kvplan.estimate.speed.steps.step_time import SPEED_UNITS, Speed
from kvplan.runs.storage.files import write_whole
from kvplan.sweeps.engine_names import OWN_ENGINE


@dataclass(frozen=True, slots=True)
class Transfer:
    """How well the coefficients predict another sweep on their device, such as one of another model."""

    model_ids: tuple[str, ...]
    num_rows: int
    errors: dict[str, HeldOutError]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The result. speed: fitted to all rows. errors: on the held-out settings, of a fit to the others.

    repetition_spread_pct: how far runs of one setting are apart, None where none was repeated. other_cpu_pct: CPU use
    of other processes, median over rows.
    """

    trials: TrialSet
    speed: Speed
    held_out: float
    seed: int
    num_fitted_settings: int
    num_scored_settings: int
    num_scored_rows: int
    errors: dict[str, HeldOutError]
    transfers: tuple[Transfer, ...]
    peaks: Peaks | None
    peak_shares: tuple[PeakShare, ...]
    repetition_spread_pct: float | None
    other_cpu_pct: float | None


def calibrate_directories(
    directories: Sequence[Path], *, held_out: float, seed: int, score: Sequence[Path] = (), despite_noise: bool = False
) -> Calibration:
    """Fit the rows of ``directories``. ``score``: further sweeps on the same device, which are only predicted.

    despite_noise: rows of a busy machine count, too. KvplanError for rows of several devices, none that was served, or
    too few settings.
    """
    found = read_trial_sets(directories, despite_noise=despite_noise)
    split = split_by_settings(found.trials, held_out, seed)
    others = [_same_device(found, read_trial_sets([path], despite_noise=despite_noise)) for path in score]
    peaks = find_peaks(found.device)
    expected = expected_speed(found.device, peaks)
    errors = _errors(split.held_out, fit_trials(split.fitted, expected)) if split.held_out else {}
    speed = fit_trials(found.trials, expected)
    busy = [share for trial in found.trials if (share := trial.row["other_cpu_pct"]) is not None]
    return Calibration(
        trials=found,
        speed=speed,
        held_out=held_out,
        seed=seed,
        num_fitted_settings=len({trial.setting for trial in split.fitted}),
        num_scored_settings=len({trial.setting for trial in split.held_out}),
        num_scored_rows=len(split.held_out),
        errors=errors,
        transfers=tuple(_transfer(other, speed) for other in others),
        peaks=peaks,
        peak_shares=shares_of_peaks(speed, peaks) if peaks else (),
        repetition_spread_pct=repetition_spread_pct(found.trials),
        other_cpu_pct=median(busy) if busy else None,
    )


def _same_device(found: TrialSet, other: TrialSet) -> TrialSet:
    if other.device != found.device:
        raise KvplanError(
            f"The sweep to score is of another device: {other.device.as_text()}, not {found.device.as_text()}.",
            hint="score sweeps of the calibrated device",
        )
    return other


def _transfer(other: TrialSet, speed: Speed) -> Transfer:
    return Transfer(tuple(other.models), len(other.trials), _errors(other.trials, speed))


def _errors(trials: Sequence[MeasuredTrial], speed: Speed) -> dict[str, HeldOutError]:
    return summarize_errors(score_trials(trials, speed))


def profile_document(calibration: Calibration) -> dict[str, object]:
    """The measured profile, schema kvplan.measured/1."""
    found = calibration.trials
    return {
        "schema": SCHEMA,
        "device": {
            "kind": found.device.kind,
            "name": found.device.name,
            "num_cores": found.device.num_cores,
            "memory_bytes": found.trials[0].row["device_memory_bytes"],
        },
        "dtype": found.device.dtype,
        "engine": {"name": "kvplan", "version": found.engine_version},
        "versions": found.versions,
        "created": datetime.now(timezone.utc).date().isoformat(),
        "models": [
            {"id": spec.id, "num_parameters": spec.num_parameters, "num_layers": spec.num_layers}
            for spec in found.models.values()
        ],
        "rows": {
            "used": len(found.trials),
            "settings": len(found.settings),
            "excluded": dict(found.excluded),
            "noisy": num_noisy(found.trials),
            "repetition_spread_pct": calibration.repetition_spread_pct,
            "median_other_cpu_pct": calibration.other_cpu_pct,
        },
        "coefficients": calibration.speed.as_json(),
        "units": SPEED_UNITS,
        "peaks": None if calibration.peaks is None else asdict(calibration.peaks),
        "shares_of_peaks": {share.name: round(share.share, 4) for share in calibration.peak_shares},
        "errors": {
            "method": "fit on some settings, drawn by seed, scored on the others; |predicted / measured - 1|",
            "held_out": calibration.held_out,
            "seed": calibration.seed,
            "settings_fitted": calibration.num_fitted_settings,
            "settings_scored": calibration.num_scored_settings,
            "figures": {name: asdict(error) for name, error in calibration.errors.items()},
        },
        "transfers": [
            {
                "models": list(transfer.model_ids),
                "rows": transfer.num_rows,
                "figures": {name: asdict(error) for name, error in transfer.errors.items()},
            }
            for transfer in calibration.transfers
        ],
        "provenance": found.sources,
    }


def num_noisy(trials: Sequence[MeasuredTrial]) -> int:
    """Return how many of the rows were measured on a busy machine, and fitted all the same."""
    return sum(why_unmeasured(trial.row) == NOISY for trial in trials)


def default_profile_path(calibration: Calibration) -> Path:
    """Path in the user's profile folder, one file per device and dtype: a later calibration replaces an earlier one."""
    return user_profile_path(calibration.trials.device)


def user_profile_path(device: DeviceIdentity, engine: str = OWN_ENGINE) -> Path:
    """One file for each device, dtype and engine; kvplan's own is not named."""
    cores = f"-{device.num_cores}-cores" if device.num_cores else ""
    served = "" if engine == OWN_ENGINE else f"-{engine}"
    name = re.sub(r"[^a-z0-9]+", "-", f"{device.name}{cores}-{device.dtype}{served}".lower()).strip("-")
    return own_folder() / f"{name}.json"


def write_profile(document: Mapping[str, object], path: Path) -> None:
    """Write the profile, and its folder if that is missing. KvplanError if either cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KvplanError(
            f"The directory {path.parent} cannot be created: {error.strerror}.", hint="choose another --out"
        ) from error
    write_whole(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
