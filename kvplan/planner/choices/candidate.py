"""A choice with so many replicas in closed form: whether it holds the load and keeps up, and how fast about."""

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
from kvplan.planner.choices.load import LoadedReplica, most_requests_per_second, replica_load, serve_users
from kvplan.planner.question.goal import Goal
from kvplan.planner.question.slo import SLO_FIELDS

_BUNCHED: Final = 3.0
"""Standard deviations of the number in progress that have a seat: more are there once in a thousand moments."""
_PLAY_MAY_BE_SHORTER: Final = {"ttft": 1.7, "tpot": 1.25, "e2el": 1.4}
"""By which factor averages in closed form may be above those of a play (docs/plan.md, "What comes out")."""

_SURELY: Final = 0.95
"""The part that is taken of a least number of replicas, since the pool that it follows from is not exact."""


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
        return replica_load(self.basis.workload, self.replicas, self.model, self.room)

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

    def may_keep(self, goal: Goal) -> bool:
        """Whether a play could find ``goal`` kept."""
        return all(
            self.average(bound.name) <= bound.seconds * _PLAY_MAY_BE_SHORTER[bound.name] for bound in goal.slo.bounds()
        )

    def leaves_open(self, goal: Goal, replicas: int) -> bool:
        """Whether so many ``replicas`` could keep ``goal``, by this one's speeds.

        Users see the same however many seats there are, as long as no pool decides what prompts find in the cache.
        """
        if self.basis.workload.num_users is None or self.model.hits is not None:
            return True
        return replace(self, replicas=replicas).may_keep(goal)

    def is_hopeless(self, goal: Goal) -> bool:
        """Whether one request alone misses a bound by so much that no play of any load, with any budget, keeps it.

        A lone request decodes as fast with every budget, and reads a prompt as fast that each of them takes whole.
        """
        whole = self.model.input_tokens <= min(self.basis.step_budgets(self.choice.gpu))
        names = ("ttft", "tpot") if whole else ("tpot",)
        return goal.is_asked and any(
            getattr(self.model.steady(1, "middle"), SLO_FIELDS[bound.name])
            > bound.seconds * _PLAY_MAY_BE_SHORTER[bound.name]
            for bound in goal.slo.bounds()
            if bound.name in names
        )

    def average(self, name: str) -> float:
        """Seconds of the objective ``name`` in closed form; infinite where the load is not kept up with."""
        middle = self.served.middle
        return math.inf if middle is None else float(getattr(middle, SLO_FIELDS[name]))


def candidate(basis: PlanBasis, choice: DeploymentChoice, replicas: int) -> Candidate | Miss:
    """``choice`` with ``replicas`` under their share of the load, or what it lacks. KvplanError as ``predict``."""
    users, groups = basis.workload.num_users, choice.layout.data_parallel_size
    at_once = MOST_SEQUENCES if users is None else math.ceil(users / replicas)
    found = _with_seats(basis, choice, replicas, at_once / groups)
    if isinstance(found, Miss):
        return found
    if users is not None and not basis.workload.pattern.think_seconds:
        return found if at_once <= found.room else _lacks_room(found, serve_users(found.model, at_once))
    served = found.served
    if served.keeps_up:
        # Fewer seats than at first: less for the sampler, more for the pool. As many as are in progress at the slowest
        # speed: too few make requests wait that could run, and more cost little. Requests come in bunches, so more than
        # there are on average: arrivals at random have a standard deviation of the square root of their mean.
        used = min(served.most_users, found.room) / groups
        smaller = _with_seats(basis, choice, replicas, used + _BUNCHED * used**0.5)
        if isinstance(smaller, Candidate) and served.num_users <= min(found.seats, smaller.room):
            smaller.__dict__["served"] = served
            return smaller
    return _lacks_room(found, served)


def least_replicas(basis: PlanBasis, choice: DeploymentChoice) -> float:
    """How many replicas of ``choice`` the load takes at least, by what one holds; infinite where none starts.

    Under users the pool is largest with the fewest seats. Under a rate a replica has as many seats however many there
    are, and answers no more requests than it does with all of them taken.
    """
    users, groups = basis.workload.num_users, choice.layout.data_parallel_size
    if users is not None and basis.workload.pattern.think_seconds:
        return 1.0
    found = _with_seats(basis, choice, 1, 1.0 if users is not None else MOST_SEQUENCES / groups)
    if isinstance(found, Miss):
        return math.inf
    if users is not None:
        capacity = found.capacity
        held = capacity.worst_sequences if basis.request.worst_case else capacity.average_sequences
        return _SURELY * users / max(held, 1)
    answered = most_requests_per_second(found.model, found.room, "middle")
    return _SURELY * (basis.workload.requests_per_second or 0.0) / answered


def _with_seats(basis: PlanBasis, choice: DeploymentChoice, replicas: int, users: float) -> Candidate | Miss:
    """Seats for ``users`` requests in each data-parallel group."""
    prediction = predict(basis, choice, users)
    if not prediction.fits:
        return misses.lacks_memory(basis.workload, choice, replicas, prediction)
    seats = choice.layout.data_parallel_size * _most_seats(basis, choice, prediction)
    capacity = capacity_of(basis, choice, prediction)
    room = capacity.worst_sequences if basis.request.worst_case else capacity.average_sequences
    return Candidate(basis, choice, replicas, prediction, capacity, min(room, seats), seats)


def _lacks_room(found: Candidate, served: LoadedReplica) -> Miss:
    request = found.basis.request
    return misses.lacks_room(
        found.basis.workload,
        found.choice,
        found.replicas,
        found.prediction,
        found.capacity,
        served,
        found.seats,
        request.worst_case,
    )


def _most_seats(basis: PlanBasis, choice: DeploymentChoice, prediction: VllmPrediction) -> int:
    """Sequences per engine in one step: no more than the blocks for their states, even at the pool's low end."""
    sure = sure_num_seqs(choice.weights.spec, choice.gpu, prediction)
    return min(basis.most_sequences(choice), sure or prediction.most_num_seqs or MOST_SEQUENCES)


_AT_THE_PREDICTION: Final = 0.5
_AT_THE_LOW_END: Final = 0.95
"""Shares of start-ups whose pool is larger: half of them than predicted, and than the low end of the 90 % interval."""


def pool_confidence(found: Candidate) -> float:
    """How much of the range of KV pools holds so many sequences; 1 where its low end does. Seats are exact."""
    choice, prediction, num_users = found.choice, found.prediction, found.served.num_users
    held = found.capacity.worst_sequences if found.basis.request.worst_case else found.capacity.average_sequences
    pool = max(prediction.rank.available_kv_bytes, 1)
    low = kv_pool_low_bytes(choice.weights.spec, choice.gpu, prediction)
    least = int(held * low / pool)
    if num_users <= least:
        return 1.0
    return _AT_THE_PREDICTION + (_AT_THE_LOW_END - _AT_THE_PREDICTION) * (held - num_users) / max(held - least, 1)
