"""Requests played on one replica under a counted clock, with a record of every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.fleet.replicas.fleet import Fleet
from kvplan.fleet.replicas.replica import Replica, StepRecord
from kvplan.fleet.replicas.seen import Seen
from kvplan.fleet.replicas.setup import PoolLayout, ReplicaSetup
from kvplan.fleet.requests import FleetRequest
from kvplan.fleet.routers.in_turn import RoundRobin


class OneStep:
    """Every step takes a second, so that seconds count steps."""

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        """See ``StepClock``."""
        return 1.0


class HalfStep(OneStep):
    """Every step takes half a second."""

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        """See ``StepClock``."""
        return 0.5


class Outcome(NamedTuple):
    """What a request saw; ``first`` and ``last``: steps that had ended when it got its first and its last token."""

    hit: int
    first: int
    last: int
    preemptions: int


@dataclass
class Record:
    """outcomes: by number. steps: (tokens, running, waiting) of each; None where
    nobody counted those that wait."""

    outcomes: dict[int, Outcome] = field(default_factory=dict)
    steps: list[tuple[int, int, int | None]] = field(default_factory=list)


def played(
    requests: Sequence[FleetRequest],
    layout: PoolLayout,
    max_num_seqs: int,
    budget: int,
    change: Callable[[Replica], None] | None = None,
) -> Record:
    """Play ``requests`` on one replica, after ``change`` of it."""
    record = Record()

    def note(step: StepRecord) -> None:
        record.steps.append((step.num_tokens, step.num_running, step.num_waiting))
        record.steps += [(step.num_tokens, step.num_running, None)] * (step.num_steps - 1)

    setup = ReplicaSetup(SchedulingRules(max_num_seqs, budget, 1e12), OneStep(), layout)
    fleet = Fleet(setup, 1, RoundRobin())
    if change is not None:
        change(fleet.replicas[0])
    fleet.replicas[0].observe_steps(note)
    for seen in fleet.play(requests).seen:
        record.outcomes[seen.request.number] = _outcome(seen)
    return record


def _outcome(seen: Seen) -> Outcome:
    return Outcome(seen.num_hit_tokens, round(seen.first), round(seen.last), seen.num_preemptions)
