"""A candidate's load played: the deployment with what its requests see, and how sure it serves them as asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from kvplan.catalog.engines import EngineChoice
from kvplan.estimate.speed.engine_speed import engine_rules
from kvplan.estimate.speed.latency import Range, SpeedModel
from kvplan.estimate.speed.queueing.front_end import BUSIEST
from kvplan.estimate.speed.queueing.loads import PlayedLoad, steady_rate, steady_users, thinking_users
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.queues import Queues, play_queues
from kvplan.estimate.vllm.prediction import VllmPrediction
from kvplan.planner.choices import misses
from kvplan.planner.choices.candidate import Candidate, pool_confidence
from kvplan.planner.choices.deployment import Capacity, DeploymentChoice, Miss, PlannedDeployment
from kvplan.planner.choices.load import LoadedReplica, serve_users
from kvplan.planner.choices.verdict import Expected, Figure, Verdict, share_at_most
from kvplan.planner.question.request import Workload
from kvplan.planner.question.slo import READABLE, SLO_FIELDS, Goal

_NEVER_COMPARED: Final = 0.5
"""What is sure of a server with weights in the host's memory, or on a CPU that was never calibrated: no published
interval is of such servers."""


def evaluate(found: Candidate) -> PlannedDeployment:
    """Play the load on one of its replicas."""
    basis = found.basis
    served, rate = found.served, basis.workload.requests_per_second
    key = (found.choice.key, found.replicas)
    if key not in basis.plays:
        basis.plays[key] = PlayedReplica(
            found.basis.workload, found.choice, found.replicas, found.prediction, found.capacity, found.model
        ).play(served)
    queues = basis.plays[key]
    expected = Expected(served, queues)
    most = _NEVER_COMPARED if _is_never_compared(found) else 1.0
    verdict = Verdict.of(basis.request.goal, expected, _other_confidences(found, expected, rate), most)
    return PlannedDeployment(
        choice=found.choice,
        replicas=found.replicas,
        num_spare=basis.request.num_spare_replicas,
        prediction=found.prediction,
        capacity=found.capacity,
        served=served,
        queues=queues,
        verdict=verdict,
        limit=_limit(basis.request.goal, found),
        offered_tokens_per_second=None if rate is None else rate * basis.workload.output_tokens,
        speed_model=found.model,
    )


def too_slow(found: Candidate, verdict: Verdict | None = None) -> Miss:
    """What ``found`` lacks, which does not keep the goal: final where one request alone would not either.

    ``verdict``: of its play; None where averages are so far off that it was not played.
    """
    goal, alone = found.basis.request.goal, serve_users(found.model, 1)
    averages = Goal(goal.slo.of_averages(), goal.confidence, goal.is_asked)
    of_one = Verdict.of(averages, Expected(alone, None), ())
    if not of_one.possible:
        return misses.too_slow_alone(found.choice, found.replicas, found.prediction, of_one)
    if verdict is None:
        verdict = Verdict.of(averages, Expected(found.served, None), ())
    return misses.lacks_speed(found.choice, found.replicas, found.prediction, found.served, verdict)


def _is_never_compared(found: Candidate) -> bool:
    return bool(found.model.offloaded_bytes) or (found.choice.gpu.is_cpu and found.model.origin == "roofline")


def _other_confidences(found: Candidate, expected: Expected, rate: float | None) -> Iterator[float]:
    """Yield how sure it is that the pool holds the load, that nobody waits too long for a seat where the goal does not
    say how long, and that a replica answers as many requests as come."""
    yield pool_confidence(found)
    if found.waits and all(bound.name == "tpot" for bound in found.basis.request.goal.slo.bounds()):
        first = expected.time("ttft", "p50")
        assert first is not None, "every request has a first token"
        yield share_at_most(first, READABLE.bounds()[0].seconds)
    if _is_never_compared(found):
        yield _NEVER_COMPARED
    supply = found.served.supply
    if rate is None or supply is None:
        return
    interval = found.model.error_interval("throughput", max(found.room, 1))
    ends = supply if interval is None else Range(supply.middle * interval.low, supply.middle * interval.high)
    yield 1 - share_at_most(Figure(supply.middle, ends), rate / found.replicas)


def _limit(goal: Goal, found: Candidate) -> str:
    """What stops the next users: the service level if it breaks before the pool is full, else the pool."""
    if goal.is_asked:
        full = serve_users(found.model, found.room).middle
        for bound in goal.slo.bounds():
            if full is None or getattr(full, SLO_FIELDS[bound.name]) > bound.seconds:
                return bound.name
    served = found.served
    if found.waits:
        return "ttft"
    if served.server_share > BUSIEST:
        return "server"
    if found.room < 1.5 * served.num_users:
        return "kv" if found.room < found.seats else "seats"
    return "bandwidth" if served.speed.bandwidth_bound else "compute"


@dataclass(frozen=True, slots=True)
class PlayedReplica:
    """One of ``number`` replicas under its share of ``workload``. ``seed``: of lengths and arrivals."""

    workload: Workload
    choice: DeploymentChoice
    number: int
    prediction: VllmPrediction
    capacity: Capacity
    model: SpeedModel
    seed: int = 0

    def play(self, served: LoadedReplica) -> Queues | None:
        """What its requests see. None where they pile up without end, and as for ``play_queues``."""
        middle = served.middle
        if middle is None:
            return None
        load, rate = self._load(served), self._rate
        if rate is None:
            return play_queues(self.model, load, self._rules, middle.requests_per_second)
        found = play_queues(self.model, load, self._rules, rate)
        return None if found is None else _as_they_come(found, served, rate)

    @property
    def _rate(self) -> float | None:
        """Requests per second that come to it; None under users."""
        rate = self.workload.requests_per_second
        return None if rate is None else rate / self.number

    def _load(self, served: LoadedReplica) -> PlayedLoad:
        """Make the load by the pattern of the workload."""
        pattern = self.workload.pattern
        load = self._evenly_spread(served).spread_as(pattern.length_spread, self.workload.longest_turn)
        load = replace(load, trace=pattern.trace)
        return load.shared_as(pattern.sharing, pattern.think_seconds)

    def _evenly_spread(self, served: LoadedReplica) -> PlayedLoad:
        prompt, answer, rate = self.workload.message_tokens, self.workload.output_tokens, self._rate
        reading = 0.0 if served.middle is None else served.middle.reading_share
        think = self.workload.pattern.think_seconds
        if rate is None and (think or self.workload.pattern.sharing.turns > 1):
            count = self.workload.users_of_one(self.number)
            return thinking_users(count, think, served.num_users, prompt, answer, reading)
        if rate is None:
            load = steady_users(round(served.num_users), prompt, answer, reading)
        else:
            load = steady_rate(rate, served.num_users, prompt, answer, reading)
        return replace(load, seed=self.seed, burstiness=self.workload.pattern.burstiness)

    @property
    def _rules(self) -> SchedulingRules:
        tokens = self.capacity.pool_tokens
        engine = EngineChoice("vllm", self.prediction.version)
        rules = engine_rules(engine, self.prediction.settings.serving, self.model.work, tokens)
        hits, rules = self.model.hits, self.model.followed(rules)
        if hits is None:
            return rules
        return replace(rules, hit_tokens=hits.hit_tokens, dropped_tokens=hits.dropped_tokens)


def _as_they_come(found: Queues, served: LoadedReplica, rate: float) -> Queues:
    """Answer no more requests at a ``rate`` than come, and fewer only where the replica can answer so few."""
    interval = found.intervals["throughput"]
    if interval is None or served.supply is None:
        return found
    low = min(served.supply.middle * interval.low / rate, 1.0)
    return replace(found, intervals=found.intervals | {"throughput": replace(interval, low=low, high=1.0)})
