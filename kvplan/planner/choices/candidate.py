"""A choice with so many replicas in closed form: how many requests it has room for, and how fast it is about."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from kvplan.estimate.speed.latency import SpeedModel
from kvplan.estimate.vllm.prediction import VllmPrediction
from kvplan.estimate.vllm.ranges import kv_pool_low_bytes, sure_num_seqs
from kvplan.planner.choices import misses
from kvplan.planner.choices.basis import MOST_SEQUENCES, PlanBasis, capacity_of, predict, speed_model
from kvplan.planner.choices.deployment import Capacity, DeploymentChoice, Miss
from kvplan.planner.choices.load import LoadedReplica, replica_load
from kvplan.planner.question.slo import READABLE, SLO_FIELDS, Goal

PLAY_MAY_BE_SHORTER: Final = {"ttft": 1.7, "tpot": 1.25, "e2el": 1.4}
"""By which factor averages in closed form may be above those of a play (docs/plan.md, "What comes out")."""


@dataclass(frozen=True)
class Candidate:
    """``room``: sequences that one replica can have in progress, by its pool and its ``seats``."""

    basis: PlanBasis
    choice: DeploymentChoice
    replicas: int
    prediction: VllmPrediction
    capacity: Capacity
    room: int
    seats: int

    @cached_property
    def model(self) -> SpeedModel:
        """How fast one replica is, at any load."""
        return speed_model(self.basis, self.choice, self.prediction)

    @cached_property
    def served(self) -> LoadedReplica:
        """One replica under its share of the load, which under users nobody needs to know whether it holds them."""
        may_wait = self.choice.max_num_seqs is not None
        return replica_load(self.basis.workload, self.replicas, self.model, self.room, may_wait=may_wait)

    @cached_property
    def held(self) -> int:
        """Sequences that the pool of one replica holds, however many seats there are."""
        capacity = self.capacity
        return capacity.worst_sequences if self.basis.request.worst_case else capacity.average_sequences

    @cached_property
    def surely_held(self) -> int:
        """The same at the low end of the pool."""
        low = kv_pool_low_bytes(self.choice.weights.spec, self.choice.gpu, self.prediction)
        return int(self.held * low / max(self.prediction.rank.available_kv_bytes, 1))

    @property
    def num_gpus(self) -> int:
        """Number of GPUs, those of the spare replicas too."""
        return self.basis.num_gpus(self.choice, self.replicas)

    def rough_score(self, goal: Goal) -> float:
        """Score by averages: seconds of a request, or of what was asked for the largest ratio to its bound."""
        middle = self.served.middle
        if middle is None:
            return math.inf
        if not goal.is_asked:
            return middle.e2el_seconds
        return max(self.average(bound.name) / bound.seconds for bound in goal.slo.bounds())

    @property
    def waits(self) -> bool:
        """Whether more requests come at once than have a seat."""
        return self.served.num_running < self.served.num_users

    def may_keep(self, goal: Goal) -> bool:
        """Whether a play could find ``goal`` kept, and nobody waits for a seat longer than ``longest_wait``."""
        if self.waits and self.average("ttft") > longest_wait(goal):
            return False
        return all(
            self.average(bound.name) <= bound.seconds * PLAY_MAY_BE_SHORTER[bound.name] for bound in goal.slo.bounds()
        )

    def leaves_open(self, goal: Goal, replicas: int) -> bool:
        """Whether so many ``replicas`` could keep ``goal``, by this one's speeds.

        Users see the same however many seats there are, as long as no pool decides what prompts find in the cache.
        """
        if self.basis.workload.num_users is None or self.model.hits is not None or self.waits:
            return True
        return replace(self, replicas=replicas).may_keep(goal)

    def is_hopeless(self, goal: Goal) -> bool:
        """Whether one request alone misses a bound by so much that no play of any load, with any budget, keeps it.

        A lone request decodes as fast with every budget, and reads a prompt as fast that each of them takes whole.
        """
        whole = self.model.input_tokens <= min(self.basis.step_budgets(self.choice))
        names = ("ttft", "tpot") if whole else ("tpot",)
        return goal.is_asked and any(
            getattr(self.model.steady(1, "middle"), SLO_FIELDS[bound.name])
            > bound.seconds * PLAY_MAY_BE_SHORTER[bound.name]
            for bound in goal.slo.bounds()
            if bound.name in names
        )

    def average(self, name: str) -> float:
        """Seconds of the objective ``name`` in closed form; infinite where the load is not kept up with."""
        middle = self.served.middle
        return math.inf if middle is None else float(getattr(middle, SLO_FIELDS[name]))


def longest_wait(goal: Goal) -> float:
    """Seconds until a first token, on average in closed form, that nobody is made to exceed for want of a seat.

    By what the goal says of first tokens or whole requests; where it says nothing of them, by what is readable.
    """
    bounds = [bound for bound in goal.slo.bounds() if bound.name != "tpot"] or [READABLE.bounds()[0]]
    return min(bound.seconds * PLAY_MAY_BE_SHORTER[bound.name] for bound in bounds)


def with_seats(basis: PlanBasis, choice: DeploymentChoice, replicas: int, users: float) -> Candidate | Miss:
    """Seats for ``users`` requests in each data-parallel group."""
    prediction = predict(basis, choice, users)
    if not prediction.fits:
        return misses.lacks_memory(basis.workload, choice, replicas, prediction)
    seats = choice.layout.data_parallel_size * _most_seats(basis, choice, prediction)
    capacity = capacity_of(basis, choice, prediction)
    room = capacity.worst_sequences if basis.request.worst_case else capacity.average_sequences
    return Candidate(basis, choice, replicas, prediction, capacity, min(room, seats), seats)


def _most_seats(basis: PlanBasis, choice: DeploymentChoice, prediction: VllmPrediction) -> int:
    """Sequences per engine in one step: no more than the blocks for their states, even at the pool's low end."""
    sure = sure_num_seqs(choice.weights.spec, choice.gpu, prediction)
    return min(basis.most_sequences(choice), sure or prediction.most_num_seqs or MOST_SEQUENCES)


_AT_THE_PREDICTION: Final = 0.5
_AT_THE_LOW_END: Final = 0.95
"""Shares of start-ups whose pool is larger: half of them than predicted, and than the low end of the 90 % interval."""


def pool_confidence(found: Candidate) -> float:
    """How much of the range of KV pools holds so many sequences; 1 where its low end does."""
    room, least, running = found.held, found.surely_held, found.served.num_running
    if running <= least:
        return 1.0
    return _AT_THE_PREDICTION + (_AT_THE_LOW_END - _AT_THE_PREDICTION) * (room - running) / max(room - least, 1)


def held_with(found: Candidate, confidence: float) -> int:
    """How many sequences the pool holds with so much confidence, from 0.5 on."""
    share = min((confidence - _AT_THE_PREDICTION) / (_AT_THE_LOW_END - _AT_THE_PREDICTION), 1.0)
    return int(found.held - share * (found.held - found.surely_held))
