"""A run as a row and a record of a run directory: what was asked beside what was measured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from kvplan.load.options import LoadOptions, burstiness_as_json
from kvplan.load.run import LoadRun
from kvplan.load.self_test import Ceiling
from kvplan.load.traffic.plan import TrafficPlan
from kvplan.runs.columns import Row
from kvplan.runs.directory import TRIAL_SCHEMA, TrialRecord
from kvplan.runs.rows import empty_row
from kvplan.runs.trials import Load, rate_as_json
from kvplan.sweeps.schedules.slo_search import SLO_PLANE

LOAD_PLANE = "load"
"""The part of a design that the rows of a load without a search belong to."""


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
