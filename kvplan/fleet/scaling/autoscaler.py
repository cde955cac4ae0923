"""What a HorizontalPodAutoscaler decides, evaluation after evaluation.

The rules are those of pkg/controller/podautoscaler (Kubernetes 1.33): replica_calculator.go,
GetExternalPerPodMetricReplicas; horizontal.go, stabilizeRecommendationWithBehaviors and
convertDesiredReplicasWithBehaviorRate.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kvplan.fleet.scaling.policy import Direction, MetricName, ReplicaPolicy, Trigger


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
