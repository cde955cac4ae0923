"""A whole profile: the worker runs the plan, and what it recorded is written into a directory."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

from kvplan.errors import KvplanError
from kvplan.machine.device import Reserve
from kvplan.profiling.page import profile_page
from kvplan.profiling.plan import ProfilePlan
from kvplan.profiling.protocol import Message, ProfileOrder, ProfileResult
from kvplan.profiling.steps import StepRecording
from kvplan.profiling.timeline import draw_timeline
from kvplan.profiling.trace import profile_document, trace_document
from kvplan.runs.columns import Row
from kvplan.runs.directory import WORKER_LOG
from kvplan.runs.statuses import STATUS_MEANING
from kvplan.runs.storage.files import write_whole
from kvplan.sweeps.feasibility import refuse_architecture
from kvplan.sweeps.forecast.timing import TrialTimes
from kvplan.sweeps.forecast.under_load import UnderLoad
from kvplan.sweeps.session import sigterm_interrupts
from kvplan.sweeps.worker.client import StageDeadline, TimeLimits, reserve_of
from kvplan.sweeps.worker.protocol import RESERVE, Event, Hello
from kvplan.sweeps.worker_host import engine_source, make_order
from kvplan.workers.process import WorkerDied, WorkerProcess, WorkerTimeout

WORKER_COMMAND: Final = (sys.executable, "-m", "kvplan.profiling.worker.process")

PROFILE: Final = "profile.json"
TRACE: Final = "trace.json"
TIMELINE: Final = "timeline.png"
PAGE: Final = "report.html"
ALLOCATIONS: Final = "memory.pickle"

OnEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class ProfileOutcome:
    """What a profile left in ``directory``: the recording, the row's columns that were measured, versions."""

    plan: ProfilePlan
    directory: Path
    recording: StepRecording
    row: Row
    hello: Hello
    files: tuple[str, ...]

    def document(self) -> dict[str, object]:
        return profile_document(self.plan, self.recording, self.row, self.hello)


def new_directory(wanted: Path) -> Path:
    """``wanted``, made if it is missing. KvplanError if it holds something, or cannot be made."""
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        is_empty = not any(wanted.iterdir())
    except OSError as error:
        raise KvplanError(
            f"The directory {wanted} cannot be used: {error.strerror}.", hint="choose another --out"
        ) from None
    if not is_empty:
        raise KvplanError(f"{wanted} is not empty.", hint="choose another --out")
    return wanted


def run_profile(
    plan: ProfilePlan, directory: Path, on_event: OnEvent, *, worker_command: Sequence[str] = WORKER_COMMAND
) -> ProfileOutcome:
    """Run the plan and write its files. KvplanError if the setting cannot serve, or the worker fails."""
    source = engine_source(plan.options, plan.predictor.spec, plan.load_format, directory)
    allocations = directory / ALLOCATIONS if plan.records_allocations else None
    trial = make_order(plan.prepared, plan.predictor.device, source)
    order = ProfileOrder(trial, None if allocations is None else str(allocations.resolve()))
    try:
        with sigterm_interrupts():
            hello, result, reserve = _ask_worker(order, plan, directory, on_event, worker_command)
    except KeyboardInterrupt:
        shutil.rmtree(directory)  # it was made for this profile, and holds nothing of it
        raise
    if result["recording"] is None:
        raise _refusal(result["row"], directory, allocations)
    if reserve is not None:
        plan = replace(plan, prepared=plan.prepared.with_reserve(reserve))
    recording = StepRecording(result["recording"])
    files = [PROFILE, TRACE, TIMELINE, PAGE]
    outcome = ProfileOutcome(
        plan,
        directory,
        recording,
        result["row"],
        hello,
        (*files, *([ALLOCATIONS] if allocations is not None and allocations.exists() else [])),
    )
    document, about = outcome.document(), describe(plan)
    write_whole(directory / PROFILE, json.dumps(document, indent=1) + "\n")
    write_whole(directory / TRACE, json.dumps(trace_document(recording, plan.predictor.spec.served_id)) + "\n")
    timeline, narrow = (
        draw_timeline(recording, plan.predictor.spec.served_id, about, narrow=narrow) for narrow in (False, True)
    )
    write_whole(directory / TIMELINE, timeline)
    write_whole(directory / PAGE, profile_page(document, recording, about, timeline, narrow))
    return outcome


def describe(plan: ProfilePlan) -> str:
    """Device, setting and load in one line."""
    settings, device = plan.trial.settings, plan.predictor.device
    named = (
        f"max_num_seqs {settings.max_num_seqs}, block_size {settings.block_size}, "
        f"max_model_len {settings.max_model_len:,}, max_num_batched_tokens {settings.max_num_batched_tokens:,}"
    )
    return f"{device.name}; {named}; {plan.workload.as_text()}"


def _ask_worker(
    order: ProfileOrder, plan: ProfilePlan, directory: Path, on_event: OnEvent, command: Sequence[str]
) -> tuple[Hello, ProfileResult, Reserve | None]:
    times = TrialTimes(UnderLoad(plan.workload, plan.predictor), TimeLimits(), plan.options.trial_timeout)
    limits, reserve = times.limits_for(plan.prepared), None
    process = WorkerProcess(command, directory / WORKER_LOG)
    try:
        late = f"The worker did not start within {limits.starting:.0f} s."
        hello = cast(Hello, process.receive(time.monotonic() + limits.starting, late))
        architecture = plan.predictor.spec.architecture
        refuse_architecture(architecture, hello["architectures"], model_impl=plan.options.model_impl)
        process.send(order.as_json())
        deadline = StageDeadline(limits)
        while (message := cast(Message, process.receive(deadline.at, _late(deadline))))["type"] != "result":
            if message["type"] == RESERVE:
                reserve = reserve_of(message)
            elif message["type"] != "hello":
                deadline.on_event(message)
                on_event(message)
        process.stop()
        return hello, message, reserve
    except (WorkerDied, WorkerTimeout) as end:
        raise KvplanError(str(end), hint=f"{directory / WORKER_LOG} has what it wrote last") from None
    finally:
        process.kill()


def _late(deadline: StageDeadline) -> str:
    return deadline.sentence.replace("The trial", "The profile")


def _refusal(row: Row, directory: Path, allocations: Path | None) -> KvplanError:
    """The directory goes, unless it has the history of the allocations that led here."""
    status = str(row["status"])
    error = str(row.get("error") or STATUS_MEANING[status]).rstrip(".")
    hint = "other settings may fit: kvplan sweep"
    if allocations is not None and allocations.exists():
        hint = f"{allocations} has the allocations up to there"
    else:
        shutil.rmtree(directory)
    return KvplanError(f"Nothing was profiled: {error} ({status}).", hint=hint)
