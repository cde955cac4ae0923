"""A recording as profile.json, and as a trace, which https://ui.perfetto.dev and chrome://tracing open.

One track of steps with the phases inside each, counters beside it, and one bar per request in a process of its own.
Times are microseconds. Format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kvplan import __version__
from kvplan.profiling.plan import ProfilePlan
from kvplan.profiling.shares import operation_shares, phase_shares
from kvplan.profiling.steps import OTHER_PHASE, ProfiledRequest, StepRecording
from kvplan.runs.columns import Row
from kvplan.sweeps.forecast.prediction import predicted_columns
from kvplan.sweeps.worker.protocol import Hello

SCHEMA: Final = "kvplan.profile/1"
Event = dict[str, Any]

_ENGINE: Final = 1
_REQUESTS: Final = 2
_STEPS: Final = 1
_ARGS: Final = (
    "prefill_tokens",
    "decode_tokens",
    "prefill_seqs",
    "decode_seqs",
    "new_tokens",
    "num_running",
    "num_waiting",
    "used_blocks",
    "cached_blocks",
    "free_blocks",
    "num_preemptions",
)


def trace_document(recording: StepRecording, model_id: str) -> dict[str, Any]:
    """The whole trace; its events are sorted by time."""
    events = [*_steps(recording), *_counters(recording), *_requests(recording)]
    events.sort(key=lambda event: (event["ts"], -event.get("dur", 0.0)))
    return {
        "traceEvents": [*_names(), *events],
        "displayTimeUnit": "ms",
        "otherData": {"model": model_id, "num_steps": str(recording.num_steps), "written_by": "kvplan profile"},
    }


def _names() -> Iterator[Event]:
    for process, name in ((_ENGINE, "engine"), (_REQUESTS, "requests")):
        yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}
    yield {"ph": "M", "name": "thread_name", "pid": _ENGINE, "tid": _STEPS, "args": {"name": "steps"}}


def _steps(recording: StepRecording) -> Iterator[Event]:
    steps, phases, kinds = recording.steps, recording.phases(), recording.kinds()
    columns: Any = steps
    operations = recording.json["operation_seconds"]
    for index, began in enumerate(steps["began_seconds"]):
        args = {name: columns[name][index] for name in _ARGS}
        seconds = steps["step_seconds"][index]
        yield _slice(kinds[index], "step", began, seconds, {"step": index, **args})
        at, end = began, began + seconds
        for name, column in phases.items():
            length = min(column[index], end - at)
            if length > 0 and name != OTHER_PHASE:
                parts = {part: _microseconds(times[index]) for part, times in operations.items()}
                yield _slice(name, "phase", at, length, {"operations_us": parts} if name == "forward" and parts else {})
            at += length


def _slice(name: str, category: str, began: float, seconds: float, args: dict[str, Any]) -> Event:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": _ENGINE,
        "tid": _STEPS,
        "ts": _microseconds(began),
        "dur": _microseconds(seconds),
        "args": args,
    }


def _counters(recording: StepRecording) -> Iterator[Event]:
    steps = recording.steps
    columns: Any = steps
    for index, (began, seconds) in enumerate(zip(steps["began_seconds"], steps["step_seconds"], strict=True)):
        ended = _microseconds(began + seconds)
        blocks = {kind: columns[f"{kind}_blocks"][index] for kind in ("used", "cached", "free")}
        yield _counter("KV blocks", ended, blocks)
        sequences = {"running": steps["num_running"][index], "waiting": steps["num_waiting"][index]}
        yield _counter("sequences", ended, sequences)
        tokens = {"prefill": steps["prefill_tokens"][index], "decode": steps["decode_tokens"][index]}
        yield _counter("tokens in the step", _microseconds(began), tokens)


def _counter(name: str, ts: float, values: dict[str, int]) -> Event:
    return {"ph": "C", "name": name, "pid": _ENGINE, "tid": 0, "ts": ts, "args": values}


def _requests(recording: StepRecording) -> Iterator[Event]:
    for number, request in enumerate(recording.json["requests"], start=1):
        last = request["last_token_seconds"]
        if last is None or request["first_token_seconds"] is None:
            continue
        first, arrival = request["first_token_seconds"], request["arrival_seconds"]
        # In this order: where two of them share an instant, the inner one ends first.
        yield _request_event("b", request["request_id"], number, arrival, _lengths(request))
        for name, began, ended in (("to the first token", arrival, first), ("decoding", first, last)):
            yield _request_event("b", name, number, began, {})
            yield _request_event("e", name, number, ended, {})
        yield _request_event("e", request["request_id"], number, last, {})


def _request_event(kind: str, name: str, number: int, seconds: float, args: dict[str, Any]) -> Event:
    return {
        "ph": kind,
        "name": name,
        "cat": "request",
        # Local to the process: Perfetto puts events with a plain id under "Global Legacy Events" instead.
        "id2": {"local": f"{number:#x}"},
        "pid": _REQUESTS,
        "tid": 0,
        "ts": _microseconds(seconds),
        "args": args,
    }


def _lengths(request: ProfiledRequest) -> dict[str, Any]:
    return {"prompt_tokens": request["num_prompt_tokens"], "output_tokens": request["num_output_tokens"]}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


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
