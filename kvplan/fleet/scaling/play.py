"""A trace on replicas that come and go by a policy, and what that costs.

The autoscaler decides as a HorizontalPodAutoscaler does, evaluation after evaluation. Its rules are those of
pkg/controller/podautoscaler (Kubernetes 1.33): replica_calculator.go, GetExternalPerPodMetricReplicas; horizontal.go,
stabilizeRecommendationWithBehaviors and convertDesiredReplicasWithBehaviorRate.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvplan.fleet.replicas.fleet import Fleet, FleetPlay, FleetSample
from kvplan.fleet.replicas.replica import Replica
from kvplan.fleet.replicas.seen import Seen
from kvplan.fleet.replicas.setup import ReplicaSetup
from kvplan.fleet.requests import FleetRequest
from kvplan.fleet.routers.interface import Router
from kvplan.fleet.scaling.policy import Direction, MetricName, ReplicaPolicy, Trigger

METRICS: Final[dict[MetricName, Callable[[Replica], float]]] = {
    "waiting": lambda replica: replica.num_waiting,
    "in_flight": lambda replica: replica.num_waiting + replica.num_running,
    "kv_usage": lambda replica: replica.kv_usage,
    "prompt_tokens": lambda replica: replica.num_unread_tokens(),
}
"""What is measured of a replica."""


@dataclass(slots=True)
class ReplicaSpan:
    """When a replica was asked for, when it began to serve, and when it was gone: drained, and all it had finished."""

    asked_at: float
    ready_at: float
    drained_at: float = math.inf
    gone_at: float = math.inf

    @property
    def seconds(self) -> float:
        """What is paid for."""
        return self.gone_at - self.asked_at


@dataclass(frozen=True, slots=True)
class PolicyPlay:
    """A policy over a trace. spans: of every replica that there was."""

    policy: ReplicaPolicy
    play: FleetPlay
    spans: tuple[ReplicaSpan, ...]

    @property
    def replica_seconds(self) -> float:
        """Paid for, from the trace's first request to the end of its last."""
        return sum(each.seconds for each in self.spans)

    @property
    def most_replicas(self) -> int:
        """There at once, those that start or drain included."""
        return max(sum(each.asked_at <= at < each.gone_at for each in self.spans) for at in self._changes)

    @property
    def num_starts(self) -> int:
        """Replicas that were started after the beginning."""
        return sum(each.asked_at > 0 for each in self.spans)

    @property
    def _changes(self) -> list[float]:
        return [each.asked_at for each in self.spans]


class _Scaler:
    """Looks at a fleet at every evaluation, and lets replicas come and go."""

    def __init__(self, policy: ReplicaPolicy, setup: ReplicaSetup, num_first: int) -> None:
        self._policy, self._setup = policy, setup
        self._autoscaler = Autoscaler(policy)
        self._sums: list[dict[MetricName, float]] = []
        self._names = [each.metric for each in policy.triggers]
        self._age = round(policy.metric_age_seconds / policy.sync_seconds)
        self.spans = [ReplicaSpan(0.0, 0.0) for _ in range(num_first)]

    def look(self, fleet: Fleet, sample: FleetSample) -> None:
        """One evaluation, by metrics that are some evaluations old."""
        at = sample.at
        serving = fleet.serving(at)
        self._sums.append({name: sum(map(METRICS[name], serving)) for name in self._names})
        if len(self._sums) <= self._age:
            return
        there = [index for index, span in enumerate(self.spans) if math.isinf(span.drained_at)]
        wanted = self._autoscaler.decide(at, self._sums[-1 - self._age], len(there))
        for _ in range(wanted - len(there)):
            ready = at + self._policy.cold_start_seconds
            index = fleet.add(self._setup, ready)
            assert index == len(self.spans), "only the policy adds replicas"
            self.spans.append(ReplicaSpan(at, ready))
        # A ReplicaSet deletes pods that are not ready first, and then those that have been for the shortest time.
        there.sort(key=lambda index: (self.spans[index].ready_at > at, self.spans[index].ready_at, index))
        for index in there[wanted:]:
            fleet.drain(index)
            self.spans[index].drained_at = at

    def finish(self, seen: Sequence[Seen]) -> None:
        """Replicas are gone when they have been drained and what they had has ended; all others at the end."""
        last: dict[int, float] = {}
        for each in seen:
            last[each.replica] = max(last.get(each.replica, 0.0), each.last)
        end = max(last.values(), default=0.0)
        for index, span in enumerate(self.spans):
            begun = min(span.asked_at, end)
            span.gone_at = max(min(max(span.drained_at, last.get(index, 0.0)), end), begun)


def play_policy(
    requests: Sequence[FleetRequest],
    setup: ReplicaSetup,
    policy: ReplicaPolicy,
    router: Router,
    stop: Callable[[list[Seen]], bool] | None = None,
    num_first: int | None = None,
) -> PolicyPlay:
    """Play ``requests`` on as many replicas as ``policy`` has. num_first: those there at the beginning, where somebody
    was served before; None for the fewest."""
    count = policy.min_replicas if num_first is None else num_first
    fleet = Fleet(setup, count, router, sample_seconds=policy.sync_seconds)
    scaler = _Scaler(policy, setup, count)
    play = fleet.play(requests, stop=stop, on_sample=scaler.look)
    scaler.finish(play.seen)
    return PolicyPlay(policy, play, tuple(scaler.spans))


class _ReplicaChange(NamedTuple):
    at: float
    num_replicas: int


class Autoscaler:
    """Decides how many replicas there should be, those that are starting included."""

    def __init__(self, policy: ReplicaPolicy) -> None:
        self.policy = policy
        self._recommended: deque[_ReplicaChange] = deque()
        self._added: deque[_ReplicaChange] = deque()
        self._removed: deque[_ReplicaChange] = deque()

    def decide(self, at: float, sums: Mapping[MetricName, float], current: int) -> int:
        """Return the number of replicas from ``at`` on. sums: of each metric over the replicas that serve."""
        policy = self.policy
        wanted = max((self._of_trigger(each, sums, current) for each in policy.triggers), default=current)
        stable = self._stabilized(at, wanted, current)
        limited = self._limited(at, stable, current)
        chosen = min(max(limited, policy.min_replicas), policy.max_replicas)
        if chosen > current:
            self._added.append(_ReplicaChange(at, chosen - current))
        elif chosen < current:
            self._removed.append(_ReplicaChange(at, current - chosen))
        return chosen

    def _of_trigger(self, trigger: Trigger, sums: Mapping[MetricName, float], current: int) -> int:
        usage = sums[trigger.metric] + self.policy.num_spare * trigger.target
        ratio = usage / (trigger.target * current)
        if abs(ratio - 1) <= self.policy.tolerance:
            return current
        return math.ceil(usage / trigger.target)

    def _stabilized(self, at: float, wanted: int, current: int) -> int:
        """The safest of what was recommended within the windows: fewest of those up, most of those down."""
        policy = self.policy
        self._recommended.append(_ReplicaChange(at, wanted))
        longest = max(policy.up.stabilization_seconds, policy.down.stabilization_seconds)
        while self._recommended[0].at < at - longest:
            self._recommended.popleft()
        up = min(self._within(at, policy.up))
        down = max(self._within(at, policy.down))
        if current < up:
            return up
        return down if current > down else current

    def _within(self, at: float, direction: Direction) -> Iterable[int]:
        return (each.num_replicas for each in self._recommended if each.at >= at - direction.stabilization_seconds)

    def _limited(self, at: float, wanted: int, current: int) -> int:
        if wanted > current:
            return min(wanted, self._bound(at, current, self.policy.up, 1))
        return max(wanted, self._bound(at, current, self.policy.down, -1))

    def _bound(self, at: float, current: int, direction: Direction, sign: int) -> int:
        """The most, or the fewest, replicas that the limits allow; the one that allows most change counts."""
        found = []
        for limit in direction.limits:
            begin = current - _sum(self._added, at - limit.seconds) + _sum(self._removed, at - limit.seconds)
            change = limit.value if limit.kind == "pods" else begin * limit.value / 100
            found.append(math.ceil(begin + sign * change))
        return max(found) if sign > 0 else min(found)


def _sum(changes: Iterable[_ReplicaChange], after: float) -> int:
    return sum(each.num_replicas for each in changes if each.at > after)
