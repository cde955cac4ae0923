"""Profiles fitted to tables of measured kernels: profiles/speeds/, one file per GPU, schema kvplan.kernels/1.

    device     the GPU's id in profiles/gpus/
    source     where the tables come from: package, version, licence, who measured
    fits       one per engine and format: ``engine`` (name and version of the tables), ``dtype`` (bfloat16, fp8,
               fp8-block: a scale per block, fp4), ``points`` and ``models`` of the fit, its coefficients
               (``coefficients``, ``experts``, ``latent``, ``links``: estimate.speed.steps.rank_step) and its ``errors``

``tools/fit_kernel_speeds.py`` writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from kvplan.catalog.devices.measured_profile import MeasuredProfile
from kvplan.errors import KvplanError
from kvplan.paths import profiles_dir

SCHEMA: Final = "kvplan.kernels/1"
FOLDER: Final = "speeds"


@cache
def read_kernel_tables() -> tuple[MeasuredProfile, ...]:
    """All shipped ones. KvplanError for a file that cannot be read: the installation is broken."""
    found: list[MeasuredProfile] = []
    for path in sorted((profiles_dir() / FOLDER).glob("*.json")):
        try:
            found.extend(_profiles(path, json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise KvplanError(
                f"The profile of kernel speeds {path.name} cannot be read: {error}.", hint="reinstall kvplan"
            ) from error
    return tuple(found)


def _profiles(path: Path, document: Mapping[str, Any]) -> Iterator[MeasuredProfile]:
    if document["schema"] != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    device, source = str(document["device"]), document["source"]
    for fit in document["fits"]:
        engine, errors = fit["engine"], fit["errors"]["all"]
        yield MeasuredProfile(
            path=path,
            device_kind="cuda",
            device_name=device,
            num_cores=None,
            dtype=str(fit["dtype"]),
            engine=str(engine["name"]),
            created=str(source["date"]),
            model_ids=tuple(fit["models"]),
            num_rows=int(fit["points"]),
            coefficients=MappingProxyType({name: float(value) for name, value in fit["coefficients"].items()}),
            errors=MappingProxyType({}),
            source="kernels",
            experts=fit.get("experts"),
            latent=fit.get("latent"),
            links=fit.get("links"),
            engine_version=str(engine["version"]),
            note=f"kernels measured on {device} with {engine['title']} {engine['version']} in {fit['dtype']}",
            details=(
                f"{source['package']} {source['version']}; {fit['points']:,} steps, median error of the fit "
                f"{errors['median_pct']:.1f} %"
            ),
        )
