"""Measured profiles: what a device reached, in the coefficients of estimate.speed.steps.step_time and rank_step.

One JSON file per profile (schema kvplan.measured/1), written by ``kvplan calibrate``: shipped ones under
profiles/measured/, the user's own under ``user_profiles_dir()``/measured/. Beside them stand those fitted to tables of
measured kernels (kernel_tables). A user's file that cannot be read is left out and named in one line; it never stops a
command.

A GPU without tables of its own has the speeds of one with the same compute capability, scaled by the data sheets.
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
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from kvplan.catalog.devices.gpus import GpuProfile, find_gpu
from kvplan.catalog.devices.kernel_tables import read_kernel_tables
from kvplan.catalog.devices.measured_profile import HeldOutError, MeasuredProfile
from kvplan.catalog.devices.server_scale import MeasuredServer, ServerScale, Sizes
from kvplan.errors import KvplanError, UsageError
from kvplan.files import LARGEST_CONFIG_BYTES, parse_json, read_text
from kvplan.machine.host import cpu_name, usable_cores
from kvplan.paths import profiles_dir, user_profiles_dir

_FEW: Final = 0.25
"""A GPU with less than this share of the measured one's operations per byte of bandwidth keeps its units busy."""
_REACHED_BY_FEW: Final = 0.85
SCHEMA: Final = "kvplan.measured/1"
FOLDER: Final = "measured"

COEFFICIENTS: Final = (
    "step_seconds",
    "layer_seconds",
    "sequence_seconds",
    "bandwidth",
    "flops",
    "kv_bandwidth",
    "attention_flops",
    "sharpness",
    "row_step",
)
"""The fields of a profile, those of ``Speed`` in ``estimate.speed.steps.step_time``. All but times must be above 0."""


@dataclass(frozen=True, slots=True)
class MeasuredProfiles:
    """What was found, the user's before the shipped ones and the newest first; ``notices`` name what was left out.

    ``server``: one whose loads its user measured.
    """

    profiles: tuple[MeasuredProfile, ...] = ()
    notices: tuple[str, ...] = ()
    server: MeasuredServer | None = None

    @property
    def swept(self) -> tuple[MeasuredProfile, ...]:
        """Profiles that ``kvplan calibrate`` fitted to sweeps."""
        return tuple(each for each in self.profiles if each.source == "sweep")

    def for_device(
        self, kind: str, name: str, num_cores: int | None, dtype: str | None = None, *, engine: str | None = None
    ) -> MeasuredProfile | None:
        """The best profile of a device as driver or system name it; of this ``dtype`` if there is one.

        engine: the only one whose profiles will do.
        """
        cores = num_cores if kind == "cpu" else None
        alike = [each for each in self.profiles if each.device_kind == kind and _is_same(each.device_name, name, kind)]
        found = [each for each in alike if engine in (None, each.engine)]
        return _preferred([each for each in found if each.num_cores == cores], dtype)

    def for_gpu(self, gpu: GpuProfile, dtype: str | None = None, engine: str | None = None) -> MeasuredProfile | None:
        """The best profile of a catalog's device; the catalog's ``cpu`` is the machine this runs on.

        One of ``engine`` comes first, if that is asked for; then fits to sweeps before fits to kernels. Where the GPU
        has none, those of the one most like it stand in, scaled by the data sheets.
        """
        if gpu.is_cpu and gpu.id == "cpu":
            here = "cpu", cpu_name(), usable_cores(), dtype
            return self.for_device(*here, engine=engine) or self.for_device(*here, engine=_MEASURED_FIRST)
        found = [each for each in self.profiles if _is_of(each, gpu)] or nearest_profiles(self.profiles, gpu)
        found.sort(key=lambda each: (engine is not None and each.engine != engine, each.source != "sweep"))
        alike = [each for each in found if (each.engine, each.source) == (found[0].engine, found[0].source)]
        return _preferred(alike, dtype)

    def server_scale(self, gpu: GpuProfile, sizes: Sizes, speed_format: str) -> ServerScale | None:
        """What was measured of a server with such instances; None where nobody measured one on this GPU."""
        return None if self.server is None else self.server.scale_for(gpu.id, sizes, speed_format)


_MEASURED_FIRST: Final = "kvplan"
"""Whose profiles of this machine stand for an engine that has none: those of the engine that it is measured with."""


def _preferred(found: list[MeasuredProfile], dtype: str | None) -> MeasuredProfile | None:
    """The first of the dtype asked for or of the nearest to it, else the first."""
    if dtype is not None:
        # The format and those whose speeds come nearest to it, nearest first; 16-bit floats stand for every other.
        # ``fp8-block``: 8-bit floats with a scale for each block of a matrix.
        for name in (dtype, *_FALLBACKS.get(dtype, ()), "bfloat16", "float16"):
            for each in found:
                if each.dtype == name:
                    return each
    return found[0] if found else None


_FALLBACKS: Final[Mapping[str, tuple[str, ...]]] = {
    "fp4": ("fp8", "fp8-block"),
    "fp8": ("fp8-block",),
    "fp8-block": ("fp8",),
}


def _is_same(one: str, other: str, kind: str) -> bool:
    """Whether two names are of one device: a GPU has its driver's name and the catalog's."""
    if one == other or kind == "cpu":
        return one == other
    try:
        return find_gpu(one).id == find_gpu(other).id
    except UsageError:
        return False


def _is_of(profile: MeasuredProfile, gpu: GpuProfile) -> bool:
    if profile.device_kind == "cpu" and not gpu.is_cpu:
        return False
    try:
        return find_gpu(profile.device_name).id == gpu.id
    except UsageError:
        return False


def own_folder() -> Path:
    """Return the folder of the user's measured profiles, which are found without being named."""
    return user_profiles_dir() / FOLDER


def load_measured(calibration: str | None = None) -> MeasuredProfiles:
    """All profiles for ``None``, none for "none", else the one in that file. KvplanError where it cannot be read."""
    if calibration is None:
        folders = (own_folder(), profiles_dir() / FOLDER)
        found = _read_folders(folders)
        return MeasuredProfiles(found.profiles + read_kernel_tables(), found.notices)
    if calibration.strip().lower() == "none":
        return MeasuredProfiles()
    path = Path(calibration).expanduser()
    try:
        return MeasuredProfiles((read_measured(path),))
    except ValueError as error:
        raise KvplanError(
            f"{path} is not a measured profile: {error}.", hint="`kvplan calibrate DIR --out FILE` writes one"
        ) from error


@cache
def _read_folders(folders: tuple[Path, ...]) -> MeasuredProfiles:
    profiles, notices = [], []
    for folder in folders:
        found = []
        for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
            try:
                found.append(read_measured(path))
            except (KvplanError, ValueError) as error:
                notices.append(f"the measured profile {path.name} is left out: {error}")
        profiles += sorted(found, key=lambda profile: profile.created, reverse=True)
    return MeasuredProfiles(tuple(profiles), tuple(notices))


def read_measured(path: Path) -> MeasuredProfile:
    """One file. KvplanError where it cannot be read, ValueError (one phrase) where it is no profile of this schema."""
    text = read_text(path, LARGEST_CONFIG_BYTES)
    try:
        document = parse_json(text)
    except ValueError as error:
        raise ValueError("it is not JSON") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    try:
        return _profile(path, document)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ValueError(f"something is missing or malformed in it ({error})") from error


def _profile(path: Path, document: Mapping[str, Any]) -> MeasuredProfile:
    device = document["device"]
    coefficients = {str(name): float(value) for name, value in document["coefficients"].items()}
    for name in COEFFICIENTS:
        value = coefficients[name]
        if not math.isfinite(value) or value < 0 or (value == 0 and not name.endswith("_seconds")):
            raise ValueError(f"{name} is {value:g}")
    scored = document["errors"]["figures"]
    return MeasuredProfile(
        path=path,
        device_kind=str(device["kind"]),
        device_name=str(device["name"]),
        num_cores=int(device["num_cores"]) if device["kind"] == "cpu" else None,
        dtype=str(document["dtype"]),
        engine=str(document["engine"]["name"]),
        created=str(document["created"]),
        model_ids=tuple(str(model["id"]) for model in document["models"]),
        num_rows=int(document["rows"]["used"]),
        coefficients=MappingProxyType(coefficients),
        errors=MappingProxyType({str(name): _held_out_error(error) for name, error in scored.items()}),
        experts=document.get("experts"),
        latent=document.get("latent"),
        links=document.get("links"),
    )


def _held_out_error(error: Mapping[str, Any]) -> HeldOutError:
    within = error.get("within_pct")
    return HeldOutError(float(error["median_pct"]), float(error["p90_pct"]), None if within is None else float(within))


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
