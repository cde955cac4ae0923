"""The measured profile that results leave, schema kvplan.measured/1, and where it is kept."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from kvplan.calibrate.calibration import user_profile_path
from kvplan.calibrate.results.calibration import ResultCalibration
from kvplan.calibrate.results.matching import Matched
from kvplan.calibrate.results.readers.fields import LARGEST_RESULT_BYTES
from kvplan.calibrate.results.reading import result_files
from kvplan.catalog.devices.measured import SCHEMA
from kvplan.estimate.speed.steps.step_time import SPEED_UNITS
from kvplan.files import read_bytes


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
