"""A sweep's plan as its manifest, and back: what ``--resume`` continues from."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from kvplan import __version__
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.machine.device import Device, detect_device
from kvplan.machine.host import checkout_commit
from kvplan.runs.columns import columns_as_json
from kvplan.runs.directory import MANIFEST_SCHEMA, DeviceEntry, Manifest, lacking
from kvplan.runs.shape import ShapeError, check_shape
from kvplan.runs.statuses import STATUS_MEANING
from kvplan.runs.trials import Trial
from kvplan.sweeps.capacity import counted_device, with_memory
from kvplan.sweeps.design import Plane
from kvplan.sweeps.drafting import swept_model
from kvplan.sweeps.hosts import SweptEngine
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.plan import SweepPlan, make_predictor, make_schedule, notices_of
from kvplan.sweeps.worker.early import ask_own_worker
from kvplan.workload.lengths import LARGEST_SIGMA, LONGEST, Lengths
from kvplan.workload.requests import LARGEST_SEED, LOWEST_RATE, MOST_REQUESTS, RequestSpec, WorkloadSpec


def manifest_of(plan: SweepPlan, command: str) -> Manifest:
    """manifest.json when the sweep starts; the engine's versions are added once a worker has reported them."""
    spec, device = plan.spec, plan.device
    return {
        "schema": MANIFEST_SCHEMA,
        "run_id": plan.run_id,
        "created_at": plan.created_at,
        "command": command,
        "model": {
            "id": spec.served_id,
            "sized_as": spec.sized_as,
            "architecture": spec.architecture,
            "num_layers": spec.num_layers,
            "num_parameters": spec.num_parameters,
            "max_position_embeddings": spec.max_position_embeddings,
            "config_sha256": config_hash(spec),
            "parts": model_parts(spec),
        },
        "device": _device_entry(device),
        "workload": {
            "text": plan.workload.as_text(),
            "spec": plan.workload.as_json(),
            "sha256": requests_hash(plan.predictor.requests),
            "longest_request_tokens": max(
                (each.num_prompt_tokens + each.num_output_tokens for each in plan.predictor.requests), default=0
            ),
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
        **({} if plan.shard is None else {"shard": plan.shard}),
        "versions": {"kvplan": __version__, "python": platform.python_version()},
        "platform": platform.platform(),
        "commit": checkout_commit(),
        "statuses": dict(STATUS_MEANING),
        "columns": columns_as_json(),
    }


def _device_entry(device: Device) -> DeviceEntry:
    entry: DeviceEntry = {
        "kind": device.kind,
        "name": device.name,
        "memory_bytes": device.memory_bytes,
        "num_cores": device.num_cores,
    }
    if device.uuid:
        entry["uuid"] = device.uuid
    if device.compute_capability is not None:
        entry["compute_capability"] = list(device.compute_capability)
    return entry


def model_parts(spec: ModelSpec) -> list[str]:
    """What a model has beside dense layers with attention over keys and values in 16 bits, in words."""
    has = {
        "experts": spec.is_mixture,
        "latent attention": spec.is_latent,
        "compressed attention": spec.is_compressed,
        "layers with a state": spec.has_state,
        "weights published in few bits": spec.quantization is not None,
    }
    return [name for name, is_there in has.items() if is_there]


DeviceOf = Callable[[SweepOptions, int | None], Device]
"""Finds the device of a sweep's trials elsewhere; with the amount of memory that it is to have, None for its own."""


def plan_from_manifest(
    manifest: Manifest,
    engine_of: Callable[[SweepOptions], SweptEngine | None] = lambda options: None,
    device_of: DeviceOf | None = None,
) -> SweepPlan:
    """The plan of an earlier run, with its trials and its device. KvplanError if the model or the requests changed, or
    if this is another device: rows of two kinds say nothing about each other.

    engine_of: finds the engine that the options name, None for kvplan's own. device_of: None for this machine's.
    """
    _refuse_incomplete(manifest)
    options = SweepOptions.from_json(manifest["options"])
    engine = engine_of(options)
    spec = swept_model(options.model, options.speculative_config)
    if config_hash(spec) != manifest["model"]["config_sha256"]:
        raise KvplanError(
            f"The config of {options.model} has changed since this sweep was started.",
            hint="start a new sweep with --out",
        )
    stored = manifest["device"]
    if engine is not None:
        device = engine.device(stored["memory_bytes"])
    elif device_of is not None and not options.is_counted:
        device = device_of(options, _memory_to_ask_for(options, stored))
    else:
        device = _stored_device(options, stored)
    if options.shard is not None:  # as for a new plan
        device = replace(device, overhead_bytes=None)
    if options.url is None:  # the rows of a server elsewhere say nothing of this machine
        _refuse_another_kind(device, stored)
    workload = _workload(manifest["workload"]["spec"], options)
    predictor, calibration_notices = make_predictor(options, spec, device, workload, engine)
    known_hash = manifest["workload"].get("sha256")  # the first manifests had none
    if known_hash is not None and requests_hash(predictor.requests) != known_hash:
        raise KvplanError(
            f"The requests of {workload.file or 'this workload'} have changed since this sweep was started.",
            hint="start a new sweep with --out",
        )
    load_format = manifest["settings"]["load_format"]
    trials = tuple(Trial.from_json(record) for record in manifest["trials"])
    notices = notices_of(options, predictor, trials, load_format, engine) + calibration_notices
    return SweepPlan(
        run_id=manifest["run_id"],
        created_at=manifest["created_at"],
        options=options,
        workload=workload,
        predictor=predictor,
        schedule=make_schedule(options, predictor, workload, trials),
        trials=trials,
        planes=tuple(_plane(plane) for plane in manifest["planes"]),
        load_format=load_format,
        notices=notices,
        engine=engine,
        shard=manifest.get("shard"),
    )


def _workload(record: dict[str, Any], options: SweepOptions) -> WorkloadSpec:
    """KvplanError for requests that the options, which have limits, cannot have asked for."""
    lengths = {name: record.get(name) for name in ("input_len", "output_len")}
    rate = record.get("request_rate")
    try:
        for name, length in lengths.items():
            check_shape(length, Lengths, f"workload.spec.{name}")
        check_shape({**record, "request_rate": 1.0 if rate is None else rate}, WorkloadSpec, "workload.spec")
    except ShapeError as error:
        raise KvplanError(f"This sweep cannot be continued: {error}.") from error
    workload = WorkloadSpec.from_json(record | {"request_rate": rate})
    most = options.num_prompts or MOST_REQUESTS
    bounds = (workload.input_len, workload.output_len)
    if not (
        1 <= workload.num_prompts <= most
        and all(0 < length.first <= length.last <= LONGEST and (length.median or 1) > 0 for length in bounds)
        and all(0 <= (length.sigma or 0.0) <= LARGEST_SIGMA for length in bounds)
        and 0 <= workload.seed <= LARGEST_SEED
        and workload.request_rate >= LOWEST_RATE
        and 0 < workload.burstiness < math.inf
        and (workload.max_concurrency or 1) >= 1
        and 0 <= workload.num_prefixes <= most
        and 0 <= workload.prefix_len <= LONGEST
    ):
        raise KvplanError("This sweep cannot be continued: its workload.spec is not that of its options.")
    return workload


def _plane(record: Mapping[str, str]) -> Plane:
    try:
        check_shape(record, Plane, "planes")
    except ShapeError as error:
        raise KvplanError(f"This sweep cannot be continued: {error}.") from error
    return Plane(**record)


def _refuse_another_kind(device: Device, stored: Mapping[str, Any]) -> None:
    if device.name != stored["name"]:
        raise KvplanError(
            f"This sweep was started on {stored['name']}, but this machine has {device.name}.",
            hint="start a sweep of its own with --out; `kvplan report DIR DIR2` sets both side by side",
        )


def _memory_to_ask_for(options: SweepOptions, stored: Mapping[str, Any]) -> int | None:
    """A CPU gets as much as before; a GPU has what it has, unless the options say otherwise."""
    return int(stored["memory_bytes"]) if stored["kind"] == "cpu" else options.device_memory_bytes()


def _stored_device(options: SweepOptions, stored: Mapping[str, Any]) -> Device:
    """The device of the first rows; one that was only counted has the same memory everywhere."""
    if options.is_counted:
        return with_memory(counted_device(options), stored["memory_bytes"], "as before")
    return detect_device(
        stored["kind"],
        _memory_to_ask_for(options, stored),
        must_be_free=not (options.shares_layers or options.is_foreign),
        by_our_torch=not options.is_foreign,
        ask=ask_own_worker,
    )


def _refuse_incomplete(manifest: Manifest) -> None:
    """KvplanError that names what a continued sweep needs and the manifest lacks."""
    needed: dict[str, tuple[str, ...]] = {
        "options": (), "planes": (), "trials": (), "run_id": (), "created_at": (), "settings": ("load_format",),
        "model": ("id", "config_sha256"), "device": ("kind", "name", "memory_bytes"), "workload": ("spec", "text"),
    }  # fmt: skip
    if missing := lacking(manifest, needed):
        raise KvplanError(
            f"This sweep cannot be continued: its manifest lacks {', '.join(missing)}.",
            hint="start a new sweep with --out; `kvplan report` still reads the rows",
        )


def config_hash(spec: ModelSpec) -> str:
    return hashlib.sha256(json.dumps(dict(spec.raw_config), sort_keys=True, default=str).encode()).hexdigest()


def requests_hash(requests: Sequence[RequestSpec]) -> str:
    """Lengths and arrivals of the requests; their tokens follow from the seed."""
    records = [asdict(request) for request in requests]
    for record in records:
        if not record["num_prefix_tokens"]:  # as before there were shared prefixes
            del record["num_prefix_tokens"], record["prefix_index"]
        if not record["block_ids"] and record["chat"] is None:  # as before files said what prompts share
            del record["block_ids"], record["block_tokens"], record["chat"]
    return hashlib.sha256(json.dumps(records).encode()).hexdigest()
