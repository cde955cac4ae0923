"""Profiles fitted to tables of measured kernels: profiles/speeds/, one file per GPU, schema kvplan.kernels/1.

    device     the GPU's id in profiles/gpus/
    source     where the tables come from: package, version, licence, who measured
    fits       one per engine and format: ``engine`` (name and version of the tables), ``dtype`` (bfloat16, fp8,
               fp8-block: a scale per block, fp4), ``points`` and ``models`` of the fit, its coefficients
               (``coefficients``, ``experts``, ``latent``, ``links``: estimate.speed.steps.rank_step) and its ``errors``

``tools/fit_kernel_speeds.py`` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from kvplan.catalog.devices.measured_profile import MeasuredProfile
from kvplan.paths import profiles_dir, read_shipped

SCHEMA: Final = "kvplan.kernels/1"
FOLDER: Final = "speeds"


@cache
def read_kernel_tables() -> tuple[MeasuredProfile, ...]:
    """All shipped ones. KvplanError for a file that cannot be read: the installation is broken."""
    found: list[MeasuredProfile] = []
    for path in sorted((profiles_dir() / FOLDER).glob("*.json")):
        found += read_shipped(f"{FOLDER}/{path.name}", partial(_profiles, path))
    return tuple(found)


def _profiles(path: Path, document: Mapping[str, Any]) -> list[MeasuredProfile]:
    if document["schema"] != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    return [_profile(path, str(document["device"]), document["source"], fit) for fit in document["fits"]]


def _profile(path: Path, device: str, source: Mapping[str, Any], fit: Mapping[str, Any]) -> MeasuredProfile:
    engine, errors = fit["engine"], fit["errors"]["all"]
    return MeasuredProfile(
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
