"""profile.json: what ran, where its time went, and every step."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any, Final

from kvplan import __version__
from kvplan.profiling.plan import ProfilePlan
from kvplan.profiling.shares import operation_shares, phase_shares
from kvplan.profiling.steps import StepRecording
from kvplan.runs.columns import Row
from kvplan.sweeps.forecast.prediction import predicted_columns
from kvplan.sweeps.worker.protocol import Hello

SCHEMA: Final = "kvplan.profile/1"


def profile_document(plan: ProfilePlan, recording: StepRecording, row: Row, hello: Hello) -> dict[str, Any]:
    """The whole document. ``measured`` and ``predicted`` have the names of a sweep's columns."""
    device, spec = plan.predictor.device, plan.predictor.spec
    return {
        "schema": SCHEMA,
        "model": spec.served_id,
        "sized_as": spec.sized_as,
        "load_format": plan.load_format,
        "device": {
            "kind": device.kind,
            "name": device.name,
            "memory_bytes": device.memory_bytes,
            "num_cores": device.num_cores,
            "num_threads": recording.json["num_threads"],
        },
        "settings": plan.trial.settings.as_json(),
        "workload": {"text": plan.workload.as_text(), "spec": plan.workload.as_json()},
        "versions": {
            "kvplan": __version__,
            "kvplan_engine": hello["engine_version"],
            "torch": hello["torch_version"],
            "python": platform.python_version(),
        },
        "measured": _known(row),
        "predicted": _known(predicted_columns(plan.prepared.prediction)),
        "where_time_goes": where_time_goes(recording),
        "memory": recording.memory,
        "requests": recording.json["requests"],
        "steps": recording.steps,
        "phase_seconds": recording.phases(),
        "operation_seconds": recording.json["operation_seconds"],
    }


def where_time_goes(recording: StepRecording) -> dict[str, Any]:
    """The shares of the steps' time, and the time outside of steps."""
    return {
        "num_steps": recording.num_steps,
        "duration_seconds": recording.json["duration_seconds"],
        "step_seconds": recording.step_seconds,
        "idle_seconds": recording.idle_seconds,
        "device_is_asynchronous": recording.json["device_is_asynchronous"],
        "phases": [share.as_json() for share in phase_shares(recording)],
        "forward_operations": [share.as_json() for share in operation_shares(recording)],
    }


def _known(row: Row | Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}
