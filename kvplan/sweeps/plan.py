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
from typing import Any

from kvplan import __version__
from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.catalog.statuses import STATUS_MEANING
from kvplan.errors import KvplanError
from kvplan.sweeps.columns import MANIFEST_SCHEMA, columns_as_json
from kvplan.sweeps.commit import checkout_commit
from kvplan.sweeps.design import Plane, base_settings, make_design
from kvplan.sweeps.machine import SweepDevice, detect_device
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.prediction import Predictor, TrialPrediction
from kvplan.sweeps.schedule import FixedSchedule, Schedule, Step, play, trials_of
from kvplan.sweeps.search import SearchSequence, make_search
from kvplan.sweeps.trial import Trial
from kvplan.sweeps.workload import RequestSpec, WorkloadSpec, generate_requests

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
    device: SweepDevice
    workload: WorkloadSpec
    predictor: Predictor
    schedule: Schedule
    trials: tuple[Trial, ...]
    planes: tuple[Plane, ...]
    load_format: str
    notices: tuple[str, ...]

    def predictions(self) -> list[TrialPrediction]:
        return [self.predictor.trial(trial.settings) for trial in self.trials]

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
    predictor = Predictor(spec, device, requests, workload.max_concurrency)
    trials, planes = _trials_and_planes(options, predictor)
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
        schedule=_schedule(options, predictor, trials),
        trials=trials,
        planes=planes,
        load_format=load_format,
        notices=_notices(device, load_format, options),
    )


def _trials_and_planes(options: SweepOptions, predictor: Predictor) -> tuple[tuple[Trial, ...], tuple[Plane, ...]]:
    if not options.boundary:
        design = make_design(options.parsed_axes(), predictor)
        return design.trials(predictor, options.num_runs), design.planes
    steps = play(_search(options, predictor), lambda step: _expected_row(step, predictor))
    return trials_of(steps), (Plane("probe", "gpu_memory_utilization", "max_model_len"),)


def _schedule(options: SweepOptions, predictor: Predictor, trials: tuple[Trial, ...]) -> Schedule:
    return _search(options, predictor) if options.boundary else FixedSchedule(trials)


def _search(options: SweepOptions, predictor: Predictor) -> SearchSequence:
    axes = options.parsed_axes()
    return make_search(options.boundary, axes, base_settings(predictor), predictor, options.seed)


def _expected_row(step: Step, predictor: Predictor) -> dict[str, Any]:
    prediction = predictor.trial(step.trial.settings)
    return {"status": prediction.status, "output_throughput": prediction.output_throughput}


def plan_from_manifest(manifest: Mapping[str, Any]) -> SweepPlan:
    """The plan of a run started before, its trials and device as they were. KvplanError when the model changed."""
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
    if requests_hash(requests) != manifest["workload"]["sha256"]:
        raise KvplanError(
            f"The requests of {workload.file or 'this workload'} are not those this sweep was started with.",
            hint="start a new sweep with --out",
        )
    predictor = Predictor(spec, device, requests, workload.max_concurrency)
    trials = tuple(Trial.from_json(record) for record in manifest["trials"])
    notices = _notices(device, manifest["settings"]["load_format"], options)
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
        schedule=_schedule(options, predictor, trials),
        trials=trials,
        planes=tuple(Plane(**plane) for plane in manifest["planes"]),
        load_format=manifest["settings"]["load_format"],
        notices=notices,
    )


def manifest_of(plan: SweepPlan, command: str) -> dict[str, Any]:
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
            "num_runs": plan.options.num_runs,
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
    return hashlib.sha256(json.dumps([asdict(request) for request in requests]).encode()).hexdigest()


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


def _notices(device: SweepDevice, load_format: str, options: SweepOptions) -> tuple[str, ...]:
    notices = [device.notice] if device.notice else []
    if load_format == "dummy" and options.load_format == "auto":
        notices.append(DUMMY_NOTICE)
    return tuple(notices)


def _float32_bytes(spec: ModelSpec) -> int:
    return 4 * spec.num_parameters


def _file_name(model_id: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", model_id.rsplit("/", 1)[-1]).strip("-.") or "model"
