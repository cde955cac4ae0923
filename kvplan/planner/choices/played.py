"""A plan's load, played on one replica of a choice: percentiles instead of averages."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan.catalog.engines import EngineChoice
from kvplan.estimate.speed.engine_speed import engine_rules
from kvplan.estimate.speed.latency import SpeedModel
from kvplan.estimate.speed.queueing.loads import PlayedLoad, steady_rate, steady_users, thinking_users
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.queues import Queues, play_queues
from kvplan.estimate.vllm.prediction import VllmPrediction
from kvplan.planner.choices.deployment import Capacity, DeploymentChoice
from kvplan.planner.choices.load import LoadedReplica
from kvplan.planner.question.request import Workload


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
