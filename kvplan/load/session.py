"""A whole load, from options to a run directory: the server found, the runs done, rows and summary written."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, Protocol, cast

from kvplan import __version__
from kvplan.errors import KvplanError
from kvplan.load.client.body import RequestForm
from kvplan.load.observed.monitor import engine_figures
from kvplan.load.options import LoadOptions, burstiness_as_json
from kvplan.load.run import LoadRun, OnProgress, run_load
from kvplan.load.self_test import Ceiling
from kvplan.load.sending import run_on_loop
from kvplan.load.summary import load_summary, write_bench
from kvplan.load.target import PROBE_SECONDS, Target, find_model, probe_target
from kvplan.load.traffic.plan import TrafficPlan
from kvplan.machine.host import checkout_commit
from kvplan.metrics.http import ServerAddress
from kvplan.runs.answers.drift import drift_sentences
from kvplan.runs.answers.slo_result import objectives_ms
from kvplan.runs.answers.summary import Summary
from kvplan.runs.columns import Row, columns_as_json
from kvplan.runs.directory import MANIFEST_SCHEMA, TRIAL_SCHEMA, Manifest, TrialRecord
from kvplan.runs.rows import empty_row
from kvplan.runs.statuses import STATUS_MEANING
from kvplan.runs.storage.store import SweepStore, free_directory
from kvplan.runs.trials import Load, rate_as_json
from kvplan.sweeps.schedules.slo_search import SLO_PLANE, LoadLine

LOAD_PLANE = "load"
"""The part of a design that the rows of a load without a search belong to."""
# Where a search begins: half the seats, or this many; below 0.7 of the measured capacity.
_LIKELY_SEATS: Final = 32
_LIKELY_SHARE: Final = 0.7


class LoadListener(Protocol):
    """Who is told how a load goes."""

    def run_started(self, plan: TrafficPlan, number: int) -> None: ...

    @property
    def on_progress(self) -> OnProgress: ...

    def run_ended(self, run: LoadRun, row: Row) -> None: ...


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """What a load left in ``directory``. runs: with their verdicts, in order. drifts: what changed in each."""

    directory: Path
    rows: list[Row]
    runs: list[LoadRun]
    drifts: list[list[str]]
    summary: dict[str, Any]
    interrupted: bool


def find_target(options: LoadOptions) -> Target:
    """Reach the server and try it. KvplanError says what is wrong with address, key, model or endpoint."""
    assert options.url is not None
    address = ServerAddress.parse(options.url)
    model, longest = find_model(address, options.api_key, options.model)
    form = RequestForm(address, options.endpoint, model, options.api_key, options.ignore_eos)
    timeout = min(options.request_timeout, PROBE_SECONDS)
    return run_on_loop(probe_target(form, longest, timeout_seconds=timeout))


def default_directory(target: Target) -> Path:
    """``./kvplan-load-<model>-<time>``, new and empty."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(target.form.model).name).strip("-") or "model"
    return free_directory(Path(f"kvplan-load-{name}-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"))


def run_session(
    options: LoadOptions,
    target: Target,
    directory: Path,
    listener: LoadListener,
    *,
    command: str,
    ceiling: Ceiling | None = None,
) -> LoadOutcome:
    """Do all runs. KvplanError if the requests do not fit the server's context, or the directory cannot be written."""
    _refuse_too_long(options, target)
    created_at = datetime.now(timezone.utc)
    run_id = f"load-{created_at:%Y%m%d-%H%M%S}-{time.time_ns() % 1_000_000:06d}"
    identity = LoadIdentity(run_id, target.form.address.url, target.form.model, options, ceiling, checkout_commit())
    session = _Session(options, target, identity, listener)
    with SweepStore.create(directory, _manifest(identity, created_at, command), can_be_continued=False) as store:
        try:
            _run_all(session, store)
        except KvplanError:
            if not store.records:  # a workload that cannot be read
                store.take_back()
            raise
        summary = session.summary()
        store.write_results()
        store.write_summary(cast(Summary, summary))
    if options.save_detailed:
        write_bench(directory, summary, session.runs[summary["main_run"] - 1].measured)
    return LoadOutcome(directory, session.rows, session.runs, session.drifts, summary, session.runs[-1].interrupted)


def _run_all(session: _Session, store: SweepStore) -> None:
    for step in session.steps():
        record = session.run(step)
        requests = session.runs[-1].requests(record["row"]["trial_id"], with_gaps=session.options.save_detailed)
        session.drifts.append(drift_sentences(requests))
        store.append(record, requests)
        store.write_results()
        if session.runs[-1].interrupted:
            return


@dataclass(slots=True)
class _Session:
    options: LoadOptions
    target: Target
    identity: LoadIdentity
    listener: LoadListener
    rows: list[Row] = field(default_factory=list)
    runs: list[LoadRun] = field(default_factory=list)
    drifts: list[list[str]] = field(default_factory=list)

    def steps(self) -> Iterator[LoadStep]:
        """The runs to do; those of a search follow from the rows so far."""
        if not self.options.search:
            yield from (LoadStep(Load(), number) for number in range(1, self.options.repetitions + 1))
            return
        search = self.options.search_range
        line = LoadLine(LoadStep, search.axis, self.options.repetitions, self._expects)
        steps = line.search(search.values, num_requests=0)
        try:
            step = next(steps)
            while True:
                yield step
                step = steps.send(self.rows[-1])
        except StopIteration:
            return

    def run(self, step: LoadStep) -> TrialRecord:
        """Do one run; the record to store."""
        plan = self.options.traffic(step.load, step.run_number)
        number = len(self.rows) + 1
        row = row_before(self.identity, step, plan, number)
        self.listener.run_started(plan, number)
        started = time.monotonic()
        run = run_load(
            self.target,
            plan,
            run=f"{self.identity.run_id} {number}",
            same_prompt=self.options.same_prompt,
            timeout_seconds=self.options.request_timeout,
            num_clients=self.options.num_clients,
            on_progress=self.listener.on_progress,
        )
        record = record_of(self.identity, row, run, time.monotonic() - started, self.options.slo_seconds)
        self.runs.append(run)
        self.rows.append(record["row"])
        self.listener.run_ended(run, record["row"])
        return record

    def summary(self) -> dict[str, Any]:
        search = self.options.search_range if self.options.search else None
        return load_summary(
            self.rows,
            run_id=self.identity.run_id,
            workload=self.options.traffic().as_text(),
            objectives_ms=objectives_ms(self.options.slo_seconds),
            search=search,
            verdicts=[run.verdict for run in self.runs],
            engines=[engine_figures(run.server) for run in self.runs],
            notes=self._notes(),
            interrupted=self.runs[-1].interrupted,
        )

    def _notes(self) -> list[str]:
        """What a reader must know before the figures."""
        notes = [run.server.missing for run in self.runs if run.server.missing]
        notes += [
            f"In run {number} the client was the limit: {'; '.join(run.health.reasons)}."
            for number, run in enumerate(self.runs, start=1)
            if run.health.is_bound
        ]
        several = len(self.runs) > 1
        notes += [
            f"{f'Run {number}: ' if several else ''}{sentence}."
            for number, found in enumerate(self.drifts, start=1)
            for sentence in found
        ]
        return list(dict.fromkeys(notes))

    def _expects(self, load: Load) -> bool:
        """Where to begin a search: not at either end."""
        if load.request_rate is not None:
            capacity = self.rows[0]["request_throughput"] if self.rows else None
            return capacity is not None and load.request_rate <= _LIKELY_SHARE * capacity
        seats = next((run.server.limits.max_num_seqs for run in self.runs if run.server.limits.max_num_seqs), None)
        return (load.max_concurrency or 0) <= (seats or _LIKELY_SEATS) // 2


def _refuse_too_long(options: LoadOptions, target: Target) -> None:
    """KvplanError where the longest request exceeds what the server says it takes."""
    workload, longest = options.traffic().workload, target.max_model_len
    if longest is None or workload.file is not None:
        return
    needed = workload.prefix_len * bool(workload.num_prefixes) + workload.input_len.last + workload.output_len.last
    if needed > longest:
        raise KvplanError(
            f"The longest request has {needed:,} tokens, but the server takes {longest:,} at most.",
            hint="lower --input-len or --output-len",
        )


def _manifest(identity: LoadIdentity, created_at: datetime, command: str) -> Manifest:
    options = identity.options
    manifest = {
        "schema": MANIFEST_SCHEMA,
        "run_id": identity.run_id,
        "created_at": created_at.isoformat(timespec="seconds"),
        "command": command,
        "model": {"id": identity.model},
        "server": {"url": identity.url},
        "workload": {"text": options.traffic().as_text(), "spec": options.traffic().workload.as_json()},
        "settings": {"seed": options.seed, "num_runs": options.repetitions},
        "options": options.as_json(),
        "planes": [],
        "trials": [],
        "versions": {"kvplan": __version__, "python": platform.python_version()},
        "platform": platform.platform(),
        "commit": identity.commit,
        "statuses": dict(STATUS_MEANING),
        "columns": columns_as_json(),
    }
    return cast(Manifest, manifest)


@dataclass(frozen=True, slots=True)
class LoadStep:
    """One run to do. load: what a search tries, empty without one."""

    load: Load
    run_number: int


@dataclass(frozen=True, slots=True)
class LoadIdentity:
    """What all rows of a load have in common."""

    run_id: str
    url: str
    model: str
    options: LoadOptions
    ceiling: Ceiling | None = None
    commit: str | None = None


def row_before(identity: LoadIdentity, step: LoadStep, plan: TrafficPlan, number: int) -> Row:
    """Identity and load of a run. number: its position, from 1."""
    options, text = identity.options, plan.as_text()
    row = empty_row()
    row |= {
        "run_id": identity.run_id,
        "trial_id": _trial_id(identity, text, step.run_number),
        "trial_number": number,
        "design_parts": SLO_PLANE if options.search else LOAD_PLANE,
        "model_id": identity.model,
        "url": identity.url,
        "commit": identity.commit,
        "seed": plan.workload.seed,
        "run_number": step.run_number,
        "started_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "workload": text,
        "num_prompts": plan.workload.num_prompts,
        "request_rate": _rate_cell(plan),
        "burstiness": burstiness_as_json(plan.burstiness) or 1.0,
        "max_concurrency": plan.users or plan.max_in_flight,
        "users": plan.users,
        "think_time": plan.think_seconds if plan.users else None,
        "num_warmups": plan.num_warmups,
        "endpoint": options.endpoint,
    }
    return row


def _rate_cell(plan: TrafficPlan) -> float | str:
    """The rate as a number, ``inf`` for all at once, ``1..8`` for a ramp."""
    if plan.rate.is_all_at_once:
        return rate_as_json(plan.workload.offered_rate) if plan.follows_trace else "inf"
    return plan.rate.as_text() if plan.rate.is_ramp else plan.rate.first


def _trial_id(identity: LoadIdentity, workload: str, run_number: int) -> str:
    """Equal loads of equal servers have equal ids."""
    key = [identity.url, identity.model, identity.options.endpoint, workload, run_number]
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]


def record_of(
    identity: LoadIdentity, row: Row, run: LoadRun, seconds: float, slo_seconds: Mapping[str, float]
) -> TrialRecord:
    """The record to store, after the run."""
    whole = row | run.row(slo_seconds)
    whole["num_prompts"] = len(run.measured.measured)
    whole["trial_seconds"] = round(seconds, 4)
    if identity.ceiling is not None:
        whole["client_ceiling"] = identity.ceiling.tokens_per_second
    return {"schema": TRIAL_SCHEMA, "row": whole, "series": run.series}
