"""Whether a choice with so many replicas holds the load: with a seat for every request, or else with what gives way.

Where a replica lacks room or writes too slowly, requests may wait for a seat (``max_num_seqs`` below what comes at
once): those that have one share less, and all are answered later. Without graphs (``enforce_eager``) their memory is
the KV cache's, and a step takes at least its launches. Both are tried where averages say that they may serve the load.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Final

from kvplan.estimate.speed.latency import SpeedModel
from kvplan.planner.choices import misses
from kvplan.planner.choices.basis import MOST_SEQUENCES, PlanBasis
from kvplan.planner.choices.candidate import PLAY_MAY_BE_SHORTER, Candidate, held_with, longest_wait, with_seats
from kvplan.planner.choices.deployment import DeploymentChoice, Miss
from kvplan.planner.choices.load import LoadedReplica, most_requests_per_second, serve_users
from kvplan.planner.choices.verdict import OF_AN_END
from kvplan.planner.question.slo import Bound

_BUNCHED: Final = 3.0
"""Standard deviations of the number in progress that have a seat: more are there once in a thousand moments."""
_SURELY: Final = 0.95
"""The part that is taken of a least number of replicas, since the pool that it follows from is not exact."""
_ABOUT: Final = 1.05
"""By which a bound on what a larger pool serves may be too low, as blocks are whole."""


def candidate(basis: PlanBasis, choice: DeploymentChoice, replicas: int) -> Candidate | Miss:
    """``choice`` with ``replicas`` under their share of the load, or what it lacks. KvplanError as ``predict``.

    What gives way has to be worth it: its pool holds what runs as surely as the goal is to be kept.
    """
    found, goal = for_all(basis, choice, replicas), basis.request.goal
    others: list[Candidate | Miss | None] = []
    if isinstance(found, Miss):
        others += () if found.is_final else _with_less(basis, choice, replicas, found)
    elif not _surely_holds(found) and _graphs_give(basis, found):
        others.append(for_all(basis, replace(choice, enforce_eager=True), replicas))
    hopeful = [each for each in others if isinstance(each, Candidate) and _surely_holds(each) and each.may_keep(goal)]
    return min(hopeful, key=lambda each: each.rough_score(goal), default=found)


def _surely_holds(found: Candidate) -> bool:
    """Whether its pool holds what runs as surely as the goal is to be kept."""
    users, basis = found.basis.workload.num_users, found.basis
    if users is None or basis.workload.pattern.think_seconds:
        running = found.served.num_running
    else:
        running = min(basis.workload.users_of_one(found.replicas), found.room)
    return running <= held_with(found, basis.request.goal.confidence)


def for_all(basis: PlanBasis, choice: DeploymentChoice, replicas: int) -> Candidate | Miss:
    """``choice`` with a seat for every request."""
    users, groups = basis.workload.num_users, choice.layout.data_parallel_size
    at_once = MOST_SEQUENCES if users is None else basis.workload.users_of_one(replicas)
    found = with_seats(basis, choice, replicas, at_once / groups)
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
        smaller = with_seats(basis, choice, replicas, used + _BUNCHED * used**0.5)
        if isinstance(smaller, Candidate) and served.num_users <= min(found.seats, smaller.room):
            smaller.__dict__["served"] = served
            return smaller
    return _lacks_room(found, served)


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


# ---- with less than a seat for all, and graphs


def least_replicas(basis: PlanBasis, choice: DeploymentChoice) -> float | Miss:
    """How many replicas of ``choice`` the load takes at least, by what one holds; infinite where none starts. What it
    lacks where its weights do not fit.

    Under users the pool is largest with the fewest seats, and so many wait as ``_most_users`` says. Under a rate a
    replica has as many seats however many there are, and answers no more requests than it does with all of them taken.
    """
    users, groups = basis.workload.num_users, choice.layout.data_parallel_size
    found = with_seats(basis, choice, 1, 1.0 if users is not None else MOST_SEQUENCES / groups)
    if isinstance(found, Miss):
        return found if found.is_final else 1.0 if _graphs_give(basis, found) >= found.missing_bytes else math.inf
    larger = 1 + _graphs_give(basis, found) / max(found.prediction.rank.available_kv_bytes, 1)
    if users is not None:
        return _SURELY * users / max(_most_users(found) * larger, 1)
    answered = most_requests_per_second(found.model, found.room, "middle")
    return _SURELY * (basis.workload.requests_per_second or 0.0) / (answered * larger)


def least_that_answer(basis: PlanBasis, choice: DeploymentChoice) -> float:
    """How many replicas of ``choice`` answer users at least as soon as their service level says, with any number of
    seats and any token budget.

    By Little's law each answers as many requests as it has users, in the time that one is away. It reads no more
    prompts than in steps of the largest budget that read nothing else.
    """
    workload, goal = basis.workload, basis.request.goal
    most = {bound.name: bound.seconds * PLAY_MAY_BE_SHORTER[bound.name] for bound in goal.slo.bounds()}
    others = (workload.output_tokens - 1) * most.get("tpot", math.inf) if workload.output_tokens > 1 else 0.0
    longest = min(most.get("e2el", math.inf), most.get("ttft", math.inf) + others)
    found = with_seats(basis, choice, 1, 1.0)
    if workload.num_users is None or not goal.is_asked or math.isinf(longest) or isinstance(found, Miss):
        return 1.0
    answered = found.model.most_prompts_per_second(max(basis.step_budgets(choice)))
    return _SURELY * workload.num_users / (answered * (longest + workload.pattern.think_seconds))


def _most_users(found: Candidate) -> float:
    """Users of one replica at most: those that ``found`` has room for, those that can wait for one of them, and those
    that think.

    How soon that is differs little with the token budget, so that the default's speeds do.
    """
    basis, away, room = found.basis, found.basis.workload.pattern.think_seconds, found.held
    if _may_wait(basis):
        away, room = away + longest_wait(basis.request.goal), max(found.room, 1)
    if not away:
        return room
    return room + away * _usual(found).steady(room, "middle").requests_per_second


def _usual(found: Candidate) -> SpeedModel:
    """Speeds with the default token budget, which most of a plan's questions are about."""
    known, key = found.basis.usual_models, found.choice.layout_key
    if key not in known:
        usual = with_seats(found.basis, found.choice.for_all(None), 1, 1.0)
        known[key] = usual.model if isinstance(usual, Candidate) else found.model
    return known[key]


def _may_wait(basis: PlanBasis) -> bool:
    """Whether requests may wait for a seat: those of users, where a service level says how long, or somebody says how
    many seats there are. Otherwise so many users are to be served at once."""
    request = basis.request
    is_said = request.goal.is_asked or request.settings.max_num_seqs is not None or request.as_started
    return basis.workload.num_users is not None and is_said


def _graphs_give(basis: PlanBasis, found: Candidate | Miss) -> int:
    """Bytes of each GPU that the KV cache would have more without graphs; 0 where they are not this plan's to leave
    out, or not part of the budget."""
    settings, prediction = basis.request.settings, found.prediction
    if prediction is None or settings.enforce_eager or basis.request.as_started or found.choice.enforce_eager:
        return 0
    rank = prediction.rank
    if not rank.subtracted_graph_bytes or rank.given_pool_bytes is not None:
        return 0
    return rank.subtracted_graph_bytes + rank.activation.peak_bytes - rank.activation.warm_peak_bytes


def _with_less(
    basis: PlanBasis, choice: DeploymentChoice, replicas: int, lacks: Miss
) -> Iterator[Candidate | Miss | None]:
    """``choice`` that lacks room with seats for some, without graphs, and both."""
    at_once, given = basis.workload.users_of_one(replicas), _graphs_give(basis, lacks)
    most, may_wait = 0.0, _may_wait(basis)
    first = with_seats(basis, choice, 1, 1.0) if may_wait else None
    if isinstance(first, Candidate):
        most, may_wait = _most_users(first), _is_fast_with(_least_seats(first, replicas), first)
    if most >= at_once and may_wait:
        yield _in_line(basis, choice, replicas, at_once)
    if given and lacks.reason != "seats" and lacks.prediction is not None:
        eager = replace(choice, enforce_eager=True)
        larger = _ABOUT * (1 + given / max(lacks.prediction.rank.available_kv_bytes, 1))
        is_enough = lacks.shortfall <= larger if lacks.kind == "capacity" else lacks.missing_bytes <= given
        if is_enough:
            yield for_all(basis, eager, replicas)
        if may_wait and (most * larger >= at_once if most else is_enough):
            yield _in_line(basis, eager, replicas, at_once)


def _in_line(basis: PlanBasis, choice: DeploymentChoice, replicas: int, most: int) -> Candidate | None:
    """``choice`` with at most so many seats, as far as the pool surely holds them; the other requests wait."""
    groups, asked = choice.layout.data_parallel_size, basis.given_sequences(choice.gpu)
    seats = min(-(-most // groups), basis.most_sequences(choice)) if asked is None else asked
    for _ in range(3):  # fewer seats leave the pool more room
        found = with_seats(basis, replace(choice, max_num_seqs=seats), replicas, seats)
        if isinstance(found, Miss):
            return None
        held = min(held_with(found, basis.request.goal.confidence), found.room) // groups
        if seats <= held:
            return found
        if asked is not None or not held:
            return None
        seats = held
    return None


def with_fewer_seats(found: Candidate, most_tpot: float | None = None) -> Candidate | None:
    """``found`` with as many seats as keep the bounds on TPOT, and as its pool holds as surely as the goal is to be
    kept; None where it has more than enough of both, or requests would wait too long.

    ``most_tpot``: seconds on average in closed form that keep them, as a play says; without one by the interval of such
    predictions.
    """
    basis, goal = found.basis, found.basis.request.goal
    bounds = _tpot_bounds(basis)
    if not bounds or not _may_wait(basis) or basis.given_sequences(found.choice.gpu) is not None:
        return None
    running = math.ceil(found.served.num_running)
    least = _least_seats(found, found.replicas)
    if least >= running or not _is_fast_with(least, found):
        return None
    most_tpot = most_tpot or _most_tpot(found, bounds)
    if found.model.steady(least, "middle").tpot_seconds > most_tpot:
        return None
    most = min(running, held_with(found, goal.confidence)) + 1
    while most - least > 1:
        middle = (least + most) // 2
        is_fast = found.model.steady(middle, "middle").tpot_seconds <= most_tpot
        least, most = (middle, most) if is_fast else (least, middle)
    groups = found.choice.layout.data_parallel_size
    seats = max(least // groups, 1) * groups
    if seats >= running:
        return None
    fewer = _in_line(basis, found.choice, found.replicas, seats)
    return fewer if fewer is not None and fewer.waits and fewer.may_keep(goal) else None


def one_seat_more(found: Candidate, seats: int | None) -> Candidate | None:
    """``found`` with a seat more on each engine than ``seats``; None where its pool may not hold them, or nobody would
    wait then."""
    wanted = (seats or 0) + 1
    more = _in_line(found.basis, found.choice, found.replicas, wanted * found.choice.layout.data_parallel_size)
    return more if more is not None and more.waits and more.choice.max_num_seqs == wanted else None


def _most_tpot(found: Candidate, bounds: Sequence[Bound]) -> float:
    """Seconds on average in closed form that keep ``bounds`` as surely as the goal asks, by the interval of such."""
    goal, interval = found.basis.request.goal, found.model.error_interval("tpot")
    deviations = NormalDist().inv_cdf(goal.confidence) / OF_AN_END
    return min(bound.seconds for bound in bounds) / (1.0 if interval is None else interval.high) ** deviations


def _is_fast_with(seats: int, found: Candidate) -> bool:
    """Whether so many of its seats may keep the bounds on TPOT, if there are any."""
    bounds = _tpot_bounds(found.basis)
    if not bounds:
        return True
    most = PLAY_MAY_BE_SHORTER["tpot"] * _most_tpot(found, bounds)
    return _usual(found).steady(seats, "middle").tpot_seconds <= most


def _tpot_bounds(basis: PlanBasis) -> list[Bound]:
    return [bound for bound in basis.request.goal.slo.bounds() if bound.name == "tpot"]


def _least_seats(found: Candidate, replicas: int) -> int:
    """With fewer seats on each of ``replicas`` some wait too long, were each answer written as fast as one alone is."""
    model, workload = _usual(found), found.basis.workload
    alone = model.steady(1, "middle").tpot_seconds * model.output_tokens
    away = longest_wait(found.basis.request.goal) + workload.pattern.think_seconds
    return max(int(workload.users_of_one(replicas) / (1 + away / max(alone, 1e-9))), 1)
