"""From options to all that a sweep needs before it runs (model, device, requests, trials), and back from a manifest."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

from kvplan import __version__
from kvplan.catalog.measured import MeasuredProfile, load_measured
from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.machine.commit import checkout_commit
from kvplan.machine.device import Device, detect_device
from kvplan.runs.columns import Row, columns_as_json
from kvplan.runs.directory import MANIFEST_SCHEMA, Manifest
from kvplan.runs.statuses import STATUS_MEANING
from kvplan.runs.trials import Trial
from kvplan.sweeps.design import Plane, base_settings, make_design
from kvplan.sweeps.forecast.prediction import Predictor, TrialPrediction
from kvplan.sweeps.forecast.slo_prediction import SloPrediction
from kvplan.sweeps.forecast.under_load import UnderLoad
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.schedules.reruns import WithReruns
from kvplan.sweeps.schedules.schedule import FixedSchedule, Schedule, Step, play, trials_of
from kvplan.sweeps.schedules.search import make_search
from kvplan.sweeps.schedules.slo_search import SloSearch
from kvplan.workload.requests import RequestSpec, WorkloadSpec, generate_requests

DUMMY_NOTICE = "random weights (dummy): capacity and speed do not depend on the weights' values"


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """A sweep that is ready to run. ``notices`` are lines for the user.

    trials: all of them for a design, those that are expected from the predictions for a search.
    """

    run_id: str
    created_at: str
    options: SweepOptions
    spec: ModelSpec
    device: Device
    workload: WorkloadSpec
    predictor: Predictor
    schedule: Schedule
    trials: tuple[Trial, ...]
    planes: tuple[Plane, ...]
    load_format: str
    notices: tuple[str, ...]

    def predictions(self) -> list[TrialPrediction]:
        under = UnderLoad(self.workload, self.predictor)
        return [under.predictor_of(trial.load).trial(trial.settings) for trial in self.trials]

    @property
    def default_directory(self) -> Path:
        """``./kvplan-sweep-<model>-<timestamp>``."""
        return Path(f"kvplan-sweep-{self.run_id}")


def make_plan(options: SweepOptions) -> SweepPlan:
    """Everything decided, nothing started and nothing written. UsageError or KvplanError for what cannot be."""
    options.parsed_axes()  # a malformed axis is said before anything slow
    memory_bytes = options.device_memory_bytes()
    spec = resolve_model(options.model)
    device = detect_device(options.device, memory_bytes, weight_bytes=_float32_bytes(spec))
    workload = options.workload_spec(device.kind)
    requests = generate_requests(workload)
    workload = replace(workload, num_prompts=len(requests))  # a file may hold fewer
    calibration, heard = _calibration(options, device)
    predictor = Predictor(spec, device, requests, workload.max_concurrency, calibration=calibration)
    trials, planes = _trials_and_planes(options, predictor, workload)
    now = datetime.now(timezone.utc)
    load_format = resolve_load_format(options)
    return SweepPlan(
        run_id=f"{_file_name(spec.id)}-{now:%Y%m%d-%H%M%S}",
        created_at=now.isoformat(timespec="seconds"),
        options=options,
        spec=spec,
        device=device,
        workload=workload,
        predictor=predictor,
        schedule=_schedule(options, predictor, workload, trials),
        trials=trials,
        planes=planes,
        load_format=load_format,
        notices=_notices(device, load_format, options) + heard,
    )


def _trials_and_planes(
    options: SweepOptions, predictor: Predictor, workload: WorkloadSpec
) -> tuple[tuple[Trial, ...], tuple[Plane, ...]]:
    if options.boundary or options.search:
        under = UnderLoad(workload, predictor)
        schedule = _schedule(options, predictor, workload, ())
        steps = play(schedule, lambda step: _expected_row(step, under, options.slo_seconds))
        return trials_of(steps), (Plane("probe", "gpu_memory_utilization", "max_model_len"),)
    design = make_design(options.parsed_axes(), predictor)
    return design.trials(predictor, options.repetitions), design.planes


def _schedule(
    options: SweepOptions, predictor: Predictor, workload: WorkloadSpec, trials: tuple[Trial, ...]
) -> Schedule:
    schedule = _planned(options, predictor, workload, trials)
    return WithReruns(schedule) if options.rerun else schedule


def _planned(
    options: SweepOptions, predictor: Predictor, workload: WorkloadSpec, trials: tuple[Trial, ...]
) -> Schedule:
    axes, base, runs = options.parsed_axes(), base_settings(predictor), options.repetitions
    if options.boundary:
        return make_search(options.boundary, axes, base, predictor, options.seed, runs)
    if options.search:
        settings = tuple(make_design(axes, predictor).points) if axes else (base,)
        expects = SloPrediction(UnderLoad(workload, predictor), options.slo_seconds).keeps
        return SloSearch(options.load_range(), settings, len(predictor.requests), runs, expects)
    return FixedSchedule(trials)


def _expected_row(step: Step, under: UnderLoad, slo_seconds: Mapping[str, float]) -> Row:
    """The row of a step as far as a schedule looks at it, if everything goes as predicted."""
    predictor = under.predictor_of(step.trial.load)
    prediction = predictor.trial(step.trial.settings)
    throughput = prediction.output_throughput
    rate = None if throughput is None else len(predictor.requests) / max(prediction.seconds, 1e-9)
    return {
        "status": prediction.status,
        "output_throughput": throughput,
        "request_throughput": rate,
        "slo_pass": bool(slo_seconds) and SloPrediction(under, slo_seconds).keeps(step.trial.settings, step.trial.load),
    }


def plan_from_manifest(manifest: Manifest) -> SweepPlan:
    """The plan of a run started before, its trials and device as they were. KvplanError when the model changed."""
    _refuse_incomplete(manifest)
    options = SweepOptions.from_json(manifest["options"])
    spec = resolve_model(options.model)
    if config_hash(spec) != manifest["model"]["config_sha256"]:
        raise KvplanError(
            f"The config of {options.model} is not the one this sweep was started with.",
            hint="start a new sweep with --out",
        )
    stored = manifest["device"]
    memory_bytes = stored["memory_bytes"] if stored["kind"] == "cpu" else options.device_memory_bytes()
    device = detect_device(stored["kind"], memory_bytes)
    workload = WorkloadSpec.from_json(manifest["workload"]["spec"])
    requests = generate_requests(workload)
    known_hash = manifest["workload"].get("sha256")  # the first manifests had none
    if known_hash is not None and requests_hash(requests) != known_hash:
        raise KvplanError(
            f"The requests of {workload.file or 'this workload'} are not those this sweep was started with.",
            hint="start a new sweep with --out",
        )
    calibration, heard = _calibration(options, device)
    predictor = Predictor(spec, device, requests, workload.max_concurrency, calibration=calibration)
    trials = tuple(Trial.from_json(record) for record in manifest["trials"])
    notices = _notices(device, manifest["settings"]["load_format"], options) + heard
    if device.name != stored["name"]:
        notices += (f"this machine's {device.name} is not the {stored['name']} that the first rows were measured on",)
    return SweepPlan(
        run_id=manifest["run_id"],
        created_at=manifest["created_at"],
        options=options,
        spec=spec,
        device=device,
        workload=workload,
        predictor=predictor,
        schedule=_schedule(options, predictor, workload, trials),
        trials=trials,
        planes=tuple(Plane(**plane) for plane in manifest["planes"]),
        load_format=manifest["settings"]["load_format"],
        notices=notices,
    )


def _refuse_incomplete(manifest: Manifest) -> None:
    """KvplanError that names what a manifest lacks of what a continued sweep needs."""
    needed = {
        "options": (), "planes": (), "trials": (), "run_id": (), "created_at": (), "settings": ("load_format",),
        "model": ("config_sha256",), "device": ("kind", "name", "memory_bytes"), "workload": ("spec",),
    }  # fmt: skip
    missing = []
    stored = cast(Mapping[str, Any], manifest)
    for name, parts in needed.items():
        part = stored.get(name)
        missing += [name] if part is None else [f"{name}.{key}" for key in parts if key not in part]
    if missing:
        raise KvplanError(
            f"The manifest cannot be continued from: it lacks {', '.join(missing)}.",
            hint="start a new sweep with --out; `kvplan report` still reads the rows",
        )


def manifest_of(plan: SweepPlan, command: str) -> Manifest:
    """What manifest.json says when the sweep starts; the engine's versions are added once a worker has told them."""
    spec, device = plan.spec, plan.device
    return {
        "schema": MANIFEST_SCHEMA,
        "run_id": plan.run_id,
        "created_at": plan.created_at,
        "command": command,
        "model": {
            "id": spec.id,
            "architecture": spec.architecture,
            "num_layers": spec.num_layers,
            "num_parameters": spec.num_parameters,
            "max_position_embeddings": spec.max_position_embeddings,
            "config_sha256": config_hash(spec),
        },
        "device": {
            "kind": device.kind,
            "name": device.name,
            "memory_bytes": device.memory_bytes,
            "num_cores": device.num_cores,
        },
        "workload": {
            "text": plan.workload.as_text(),
            "spec": plan.workload.as_json(),
            "sha256": requests_hash(plan.predictor.requests),
        },
        "settings": {
            "seed": plan.options.seed,
            "num_runs": plan.options.repetitions,
            "load_format": plan.load_format,
            "axes": {name: list(values) for name, values in plan.options.parsed_axes().items()},
        },
        "options": plan.options.as_json(),
        "planes": [asdict(plane) for plane in plan.planes],
        "trials": [trial.as_json() for trial in plan.trials],
        "versions": {"kvplan": __version__, "python": platform.python_version()},
        "platform": platform.platform(),
        "commit": checkout_commit(),
        "statuses": dict(STATUS_MEANING),
        "columns": columns_as_json(),
    }


def config_hash(spec: ModelSpec) -> str:
    return hashlib.sha256(json.dumps(dict(spec.raw_config), sort_keys=True, default=str).encode()).hexdigest()


def requests_hash(requests: Sequence[RequestSpec]) -> str:
    """Lengths and arrivals of the requests; their tokens follow from the seed."""
    records = [asdict(request) for request in requests]
    for record in records:
        if not record["num_prefix_tokens"]:  # as before there were shared prefixes
            del record["num_prefix_tokens"], record["prefix_index"]
    return hashlib.sha256(json.dumps(records).encode()).hexdigest()


def weights_path(options: SweepOptions) -> Path | None:
    """The GGUF file or the directory with safetensors that the model's name points at, else None."""
    path = Path(options.model).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        return path.resolve()
    if path.is_dir() and any(path.glob("*.safetensors")):
        return path.resolve()
    return None


def resolve_load_format(options: SweepOptions) -> str:
    """``auto`` becomes what the model's path holds, or dummy. KvplanError when the weights asked for are not there."""
    path = weights_path(options)
    found = "dummy" if path is None else ("gguf" if path.suffix == ".gguf" else "safetensors")
    if options.load_format == "auto":
        return found
    if options.load_format not in ("dummy", found):
        raise KvplanError(
            f"There are no {options.load_format} weights at '{options.model}'.",
            hint="give --model a .gguf file or a directory with safetensors, or use --load-format dummy",
        )
    return options.load_format


def _notices(device: Device, load_format: str, options: SweepOptions) -> tuple[str, ...]:
    notices = [device.notice] if device.notice else []
    if load_format == "dummy" and options.load_format == "auto":
        notices.append(DUMMY_NOTICE)
    return tuple(notices)


def _calibration(options: SweepOptions, device: Device) -> tuple[MeasuredProfile | None, tuple[str, ...]]:
    """What this device reached in an earlier sweep, with what is to be said about it."""
    found = load_measured()
    dtype = next((str(value) for value in options.parsed_axes().get("dtype", ()) if value != "auto"), None)
    profile = found.for_device(device.kind, device.name, device.num_cores, dtype)
    heard = () if profile is None else (f"speeds: {profile.as_text()}",)
    return profile, found.notices + heard


def _float32_bytes(spec: ModelSpec) -> int:
    return 4 * spec.num_parameters


def _file_name(model_id: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", model_id.rsplit("/", 1)[-1]).strip("-.") or "model"
