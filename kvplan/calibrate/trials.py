"""The rows of sweep directories as trials that can be simulated: requests, limits, model shape, measured figures."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.dtypes import cache_dtype, element_bytes
from kvplan.estimate.kvplan.layout import plan_layout
from kvplan.estimate.speed.simulation.interface import BatchLimits
from kvplan.estimate.speed.steps.step_time import StepShape, step_shape
from kvplan.machine.host import usable_cores
from kvplan.runs.answers.outliers import NOISY_CPU_PCT
from kvplan.runs.columns import Row
from kvplan.runs.directory import MANIFEST, TRIALS, Manifest, Series, TrialRecord, read_sweep_manifest, read_trials
from kvplan.runs.rows import cell, is_counted, ran_without_kernels
from kvplan.runs.statuses import MEASURED_STATUSES
from kvplan.runs.trials import SETTING_NAMES
from kvplan.sweeps.engine_names import OWN_ENGINE
from kvplan.units import plural
from kvplan.workload.requests import RequestSpec, WorkloadSpec, clip_requests, generate_requests

WITHOUT_KERNELS: Final = "computed by plain torch, without the engine's kernels (column kernels: reference)"

NOISY: Final = f"other processes used more than {NOISY_CPU_PCT:g} % of the CPU"

Setting = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class MeasuredTrial:
    """One served trial. ``setting`` is equal for repetitions of one setting under one load.

    series: the trial over time, None where the row has none.
    """

    setting: Setting
    model_id: str
    row: Row
    requests: tuple[RequestSpec, ...]
    limits: BatchLimits
    max_concurrency: int | None
    shape: StepShape
    series: Series | None

    @property
    def arrives_over_time(self) -> bool:
        return any(request.arrival_seconds > 0 for request in self.requests)


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """What the rows were measured on. num_cores: of a CPU, else None."""

    kind: str
    name: str
    num_cores: int | None
    dtype: str

    def as_text(self) -> str:
        cores = f", {plural(self.num_cores, 'core')}" if self.num_cores else ""
        return f"{self.name}{cores}, {self.dtype}"


@dataclass(slots=True)
class TrialSet:
    """Trials of one device. excluded: number of unusable rows by reason. sources: provenance of each directory."""

    device: DeviceIdentity
    trials: list[MeasuredTrial]
    models: dict[str, ModelSpec]
    engine_version: str
    versions: dict[str, str]
    excluded: Counter[str] = field(default_factory=Counter)
    sources: list[dict[str, str]] = field(default_factory=list)

    @property
    def settings(self) -> list[Setting]:
        """The distinct settings in order of appearance."""
        return list(dict.fromkeys(trial.setting for trial in self.trials))


def read_trial_sets(directories: Sequence[Path], *, despite_noise: bool = False) -> TrialSet:
    """Return the rows of all directories. despite_noise: those of a busy machine, too.

    KvplanError if they are of several devices or dtypes, or none was served.
    """
    sets = [_read_directory(directory, despite_noise) for directory in directories]
    first = sets[0]
    for other in sets[1:]:
        if other.device != first.device:
            raise KvplanError(
                f"The rows are of different devices: {first.device.as_text()}; and {other.device.as_text()}.",
                hint="calibrate each device separately",
            )
        first.trials += other.trials
        first.models |= other.models
        first.excluded += other.excluded
        first.sources += other.sources
    return first


def _read_directory(directory: Path, despite_noise: bool) -> TrialSet:
    manifest = read_sweep_manifest(directory)
    # What is learned becomes the speed of kvplan's engine, which another one's rows do not show.
    engine = manifest["options"].get("engine", "kvplan")
    if engine != "kvplan":
        hint = "`kvplan report` sets it beside a sweep of kvplan's engine"
        raise KvplanError(f"{directory} was served by {engine}, whose speed is not learned.", hint=hint)
    stored = read_trials(directory / TRIALS)
    spec = resolve_model(str(manifest["options"]["model"]))
    served, excluded = _served(stored.records, spec.num_parameters, despite_noise)
    if not served:
        raise _no_row(directory, excluded)
    device = _device_of([record["row"] for record in served], manifest)
    requests = RequestsByLoad(WorkloadSpec.from_json(manifest["workload"]["spec"]))
    trials = [_trial(record, spec, requests) for record in served]
    return TrialSet(
        device=device,
        trials=trials,
        models={spec.id: spec},
        engine_version=str(manifest.get("versions", {}).get("kvplan_engine", "unknown")),
        versions={str(name): str(text) for name, text in manifest.get("versions", {}).items()},
        excluded=excluded,
        sources=[_provenance(directory, manifest)],
    )


_MEASURE_SOMETHING: Final = "calibrate a sweep that measured something"


def _no_row(directory: Path, excluded: Counter[str]) -> KvplanError:
    """The error where nothing is left to fit."""
    if set(excluded) == {NOISY}:
        number = sum(excluded.values())
        rows = f"All {number:,} rows of {directory} were" if number > 1 else f"The one row of {directory} was"
        hint = "repeat the sweep on a quiet machine, or insist with --despite-noise"
        return KvplanError(f"{rows} measured while {NOISY}: too noisy to fit.", hint=hint)
    reasons = "; ".join(f"{count} x {reason}" for reason, count in excluded.items()) or "it has no rows"
    is_without_kernels = WITHOUT_KERNELS in excluded
    hint = "install a C++ compiler, such as g++, and sweep again" if is_without_kernels else _MEASURE_SOMETHING
    return KvplanError(f"No row of {directory} can be used: {reasons}.", hint=hint)


def _served(
    records: Sequence[TrialRecord], num_parameters: int, despite_noise: bool
) -> tuple[list[TrialRecord], Counter[str]]:
    """Records with figures, and the number of others by reason."""
    served, excluded = [], Counter[str]()
    for record in records:
        row = record["row"]
        if is_counted(row):
            excluded["nothing was computed (load format none)"] += 1
        elif row.get("dummy_layers") == "shared":
            excluded["layers shared their weights"] += 1
        elif _has_other_weights(row, num_parameters):
            excluded["weights in few bits, or adapters"] += 1
        elif row.get("num_speculative_tokens"):
            excluded["drafts were verified"] += 1
        elif row.get("model_impl") == "transformers":
            excluded["the model ran in transformers"] += 1
        elif row.get("engine") not in (None, OWN_ENGINE):
            excluded[f"served by {row.get('engine')}, whose steps are not kvplan's"] += 1
        elif reason := why_unmeasured(row, despite_noise=despite_noise):
            excluded[reason] += 1
        else:
            served.append(record)
    return served, excluded


def why_unmeasured(row: Row, *, despite_noise: bool = False) -> str | None:
    """Return why a row, of whichever engine, shows no speed; None where it does. despite_noise: a busy one does."""
    if row.get("status") not in MEASURED_STATUSES or not row.get("output_throughput"):
        return f"not served ({row.get('status')})"
    if row.get("failed"):
        return "some requests were refused"
    if ran_without_kernels(row):
        return WITHOUT_KERNELS
    if not despite_noise and row["device"] == "cpu" and (row.get("other_cpu_pct") or 0) > NOISY_CPU_PCT:
        return NOISY
    return None


def _has_other_weights(row: Row, num_parameters: int) -> bool:
    """Whether the weights took anything but parameters x dtype."""
    found = row.get("weights_bytes")
    is_own = row.get("engine") in (None, "kvplan")
    return is_own and found is not None and found != num_parameters * element_bytes(row["dtype"])


def _device_of(rows: Sequence[Row], manifest: Manifest) -> DeviceIdentity:
    devices = sorted({(str(row["device"]), str(row["device_name"]), str(row["dtype"])) for row in rows})
    if len(devices) > 1:
        texts = "; ".join(f"{name}, {dtype}" for _, name, dtype in devices)
        raise KvplanError(
            f"The rows are of different devices or dtypes: {texts}.", hint="calibrate one device and dtype at a time"
        )
    kind, name, dtype = devices[0]
    cores = int(manifest["device"].get("num_cores") or usable_cores()) if kind == "cpu" else None
    return DeviceIdentity(kind, name, cores, dtype)


class RequestsByLoad:
    """The sweep's requests, under its load and under those that single trials had of their own."""

    def __init__(self, spec: WorkloadSpec) -> None:
        self._spec = spec
        self._made: dict[WorkloadSpec, tuple[RequestSpec, ...]] = {}

    def of(self, row: Row) -> tuple[RequestSpec, ...]:
        spec = replace(self._spec, request_rate=_rate(row, self._spec), max_concurrency=row["max_concurrency"])
        if spec not in self._made:
            self._made[spec] = generate_requests(spec)
        return clip_requests(self._made[spec], row["max_model_len"]).requests


def _rate(row: Row, spec: WorkloadSpec) -> float:
    rate = row.get("request_rate", spec.request_rate)
    return math.inf if rate in ("inf", None) else float(rate)


def _trial(record: TrialRecord, spec: ModelSpec, requests: RequestsByLoad) -> MeasuredTrial:
    row = record["row"]
    num_blocks, block_size = row["num_blocks_total"], row["block_size"]
    assert num_blocks is not None, "a served trial has a pool"
    kv_dtype = cache_dtype(row["dtype"], row["kv_cache_dtype"])
    layout = plan_layout(spec, CacheSettings(model_dtype=row["dtype"], kv_dtype=kv_dtype), block_size)
    load = (str(row["request_rate"]), row["max_concurrency"])
    return MeasuredTrial(
        setting=(spec.id, *(cell(row, name) for name in SETTING_NAMES), *load),
        model_id=spec.id,
        row=row,
        requests=requests.of(row),
        limits=BatchLimits(row["max_num_seqs"], row["max_num_batched_tokens"], block_size, num_blocks, layout.groups),
        max_concurrency=row["max_concurrency"],
        shape=step_shape(
            spec,
            element_bytes=element_bytes(row["dtype"]),
            kv_bytes_per_token=layout.bytes_per_token,
        ),
        series=record.get("series"),
    )


def _provenance(directory: Path, manifest: Manifest) -> dict[str, str]:
    """The run, and hashes by which its directory is recognised."""
    return {
        "run_id": str(manifest.get("run_id")),
        "created_at": str(manifest.get("created_at")),
        "workload": str(manifest["workload"].get("text")),
        "manifest_sha256": _sha256(directory / MANIFEST),
        "trials_sha256": _sha256(directory / TRIALS),
        "commit": json.dumps(manifest.get("commit")),
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
