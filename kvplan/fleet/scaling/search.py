"""The cheapest policy of a handful that keeps a service level over a trace, and what it is held against.

fixed fleet   the fewest replicas that keep the service level all the time
policies      queue lengths; requests in flight, KV usage and, where the router counts them, prompt tokens in flight,
              at shares of what a replica of the fixed fleet has of them in its busiest window; where none keeps it, the
              nearest with more replicas at least, up to the fixed fleet
perfect       an autoscaler without delays (llm-d/llm-d-autoscaling issue 1499): in each window as many replicas as its
              request rate needs, of which each takes the rate that the fixed fleet takes at most in the busiest window
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kvplan.fleet.replicas.fleet import Fleet, FleetSample
from kvplan.fleet.replicas.seen import Seen
from kvplan.fleet.replicas.setup import ReplicaSetup
from kvplan.fleet.requests import FleetRequest
from kvplan.fleet.routers.interface import Router
from kvplan.fleet.scaling.play import PolicyPlay, play_policy
from kvplan.fleet.scaling.policy import ReplicaPolicy, Trigger

Judge = Callable[[Sequence[Seen]], float]
"""The largest ratio of what requests saw to its bound, over the windows that count: at most 1 keeps them."""

_WAITING: Final = (1.0, 5.0, 20.0)
"""Requests that wait on each replica. 5 is what vLLM's production stack sets (its tutorial on KEDA)."""
_SHARES: Final = (0.5, 0.75, 1.0)
"""Of what a replica of the fixed fleet has in flight, or in use, in its busiest window. With all of it replicas are
kept as busy as those were; with less there is time to start one."""
_LEAST_KV_USAGE: Final = 0.02
_LEAST_PROMPT_TOKENS: Final = 100.0
_SPEED_STEPS: Final = 5
_MOST_SPEED: Final = 4.0


@dataclass(frozen=True, slots=True)
class FixedFleet:
    """The fewest replicas that keep the service level. num_spare: paid for beside them. in_flight, kv_usage,
    prompt_tokens: of one replica on average, in the window with the most of it."""

    num_replicas: int
    seconds: float
    ratio: float
    in_flight: float
    kv_usage: float
    num_spare: int = 0
    prompt_tokens: float = 0.0

    @property
    def replica_seconds(self) -> float:
        return (self.num_replicas + self.num_spare) * self.seconds


@dataclass(frozen=True, slots=True)
class TriedPolicy:
    """A policy played. ratio: of what requests saw to its bound; above 1 the service level is missed, and infinite
    where that was plain before the end."""

    played: PolicyPlay
    ratio: float

    @property
    def keeps(self) -> bool:
        return self.ratio <= 1

    @property
    def is_whole(self) -> bool:
        """Whether it was played to the end."""
        return not self.played.play.was_stopped


@dataclass(frozen=True, slots=True)
class ScalingAnswer:
    """tried: all policies, the cheapest that keeps the service level first. perfect_replica_seconds: see above."""

    fixed: FixedFleet
    tried: tuple[TriedPolicy, ...]
    perfect_replica_seconds: float

    @property
    def best(self) -> TriedPolicy | None:
        """None where none keeps the service level."""
        return next((each for each in self.tried if each.keeps), None)

    @property
    def saved_share(self) -> float:
        """Share of the fixed fleet's replica-seconds that the best policy saves; 0 where none is cheaper."""
        best = self.best
        return 0.0 if best is None else max(1 - best.played.replica_seconds / self.fixed.replica_seconds, 0.0)


@dataclass(frozen=True)
class ScalingSearch:
    """What all policies have in common. new_router: a router without a past, for each play.

    window_seconds: by which the perfect autoscaler's rates are counted. new_stop: what gives up a play of requests
    whose service level is lost (``Fleet.play``). on_play: is told how many were played. counts_prompt_tokens: whether
    what stands before the replicas measures the prompt tokens in flight.
    """

    requests: Sequence[FleetRequest]
    setup: ReplicaSetup
    new_router: Callable[[], Router]
    judge: Judge
    cold_start_seconds: float
    window_seconds: float = 300.0
    num_spare: int = 0
    new_stop: Callable[[Sequence[FleetRequest]], Callable[[list[Seen]], bool]] | None = None
    on_play: Callable[[int], None] | None = None
    counts_prompt_tokens: bool = False
    _counts: list[int] = field(default_factory=lambda: [0])

    def fixed(self, most: int) -> FixedFleet | None:
        """The fewest replicas, at most ``most``; None where so many do not keep the service level."""
        low, high = 0, 1
        found = None
        while found is None:
            tried = self.play_fixed(min(high, most), self.requests)
            if tried.ratio <= 1:
                found = tried
            elif high >= most:
                return None
            else:
                low, high = high, 2 * high
        while found.num_replicas - low > 1:
            middle = (low + found.num_replicas) // 2
            tried = self.play_fixed(middle, self.requests)
            if tried.ratio <= 1:
                found = tried
            else:
                low = middle
        return found

    def play_fixed(self, num_replicas: int, requests: Sequence[FleetRequest]) -> FixedFleet:
        """So many replicas all the time."""
        tokens: list[tuple[float, float]] = []

        def look(fleet: Fleet, sample: FleetSample) -> None:
            tokens.append((sample.at, sum(each.num_unread_tokens() for each in fleet.replicas) / num_replicas))

        fleet = Fleet(self.setup, num_replicas, self.new_router())
        play = fleet.play(requests, on_sample=look if self.counts_prompt_tokens else None)
        self._count()
        end = max(each.last for each in play.seen)
        in_flight = [(each.at, (each.num_waiting + each.num_running) / num_replicas) for each in play.samples]
        kv_usage = [(each.at, each.kv_usage) for each in play.samples]
        return FixedFleet(
            num_replicas,
            end,
            self.judge(play.seen),
            self._busiest(in_flight),
            self._busiest(kv_usage),
            self.num_spare,
            self._busiest(tokens),
        )

    def _busiest(self, figures: Sequence[tuple[float, float]]) -> float:
        """The average of (moment, figure) in the window where it is largest."""
        windows: dict[int, list[float]] = {}
        for at, figure in figures:
            windows.setdefault(int(at // self.window_seconds), []).append(figure)
        return max((sum(each) / len(each) for each in windows.values()), default=0.0)

    def answer(self, fixed: FixedFleet, min_replicas: int, max_replicas: int) -> ScalingAnswer:
        """Policies between so many replicas, beside ``fixed``. The spare ones are there at the quietest time too."""
        # The replicas of an autoscaler without delays, by window in which something is sent.
        counts = Counter(int(each.sent // self.window_seconds) for each in self.requests if each.after is None)
        window, most = counts.most_common(1)[0]
        busiest = _part(self.requests, window * self.window_seconds, (window + 1) * self.window_seconds)
        capacity = self._most_speed(fixed.num_replicas, busiest) * most / fixed.num_replicas
        needed = {place: math.ceil(count / capacity) for place, count in counts.items()}
        min_replicas = min(min_replicas + self.num_spare, max_replicas)
        first = min(max(needed[min(needed)] + self.num_spare, min_replicas), max_replicas)
        tried = [self._try(each, min_replicas, max_replicas, first) for each in self._triggers(fixed)]
        if not any(each.keeps for each in tried):
            nearest = min(tried, key=lambda each: (each.ratio, -len(each.played.play.seen)))
            tried += self._with_more(nearest, min(fixed.num_replicas + self.num_spare, max_replicas), first)
        tried.sort(key=lambda each: (not each.keeps, each.played.replica_seconds if each.keeps else each.ratio))
        return ScalingAnswer(fixed, tuple(tried), self.window_seconds * sum(needed.values()))

    def _triggers(self, fixed: FixedFleet) -> list[Trigger]:
        found = [Trigger("waiting", each) for each in _WAITING]
        found += [Trigger("in_flight", max(round(share * fixed.in_flight, 1), 1.0)) for share in _SHARES]
        found += [Trigger("kv_usage", max(round(share * fixed.kv_usage, 2), _LEAST_KV_USAGE)) for share in _SHARES]
        if self.counts_prompt_tokens:
            targets = [max(round(share * fixed.prompt_tokens, -2), _LEAST_PROMPT_TOKENS) for share in _SHARES]
            found += [Trigger("prompt_tokens", each) for each in targets]
        return list(dict.fromkeys(found))

    def _try(self, trigger: Trigger, least: int, most: int, first: int) -> TriedPolicy:
        policy = ReplicaPolicy(least, most, (trigger,), self.cold_start_seconds, self.num_spare)
        stop = None if self.new_stop is None else self.new_stop(self.requests)
        played = play_policy(self.requests, self.setup, policy, self.new_router(), stop, max(first, least))
        self._count()
        return TriedPolicy(played, math.inf if played.play.was_stopped else self.judge(played.play.seen))

    def _count(self) -> None:
        self._counts[0] += 1
        if self.on_play is not None:
            self.on_play(self._counts[0])

    def _with_more(self, tried: TriedPolicy, most: int, first: int) -> list[TriedPolicy]:
        """The same trigger with more replicas at least: the fewest that keep the service level."""
        policy, found = tried.played.policy, []
        low, high = policy.min_replicas, most
        while high - low > 0:
            middle = (low + 1 + high) // 2 if high - low > 1 else high
            found.append(self._try(policy.triggers[0], middle, policy.max_replicas, first))
            if not found[-1].keeps:
                low = middle
            elif middle == high:
                break
            else:
                high = middle
        return found

    def _most_speed(self, num_replicas: int, requests: Sequence[FleetRequest]) -> float:
        """The largest factor by which ``requests`` may come faster."""
        low, high = 1.0, _MOST_SPEED
        for _ in range(_SPEED_STEPS):
            middle = math.sqrt(low * high)
            faster = [replace(each, sent=each.sent / middle) for each in requests]
            low, high = (middle, high) if self.play_fixed(num_replicas, faster).ratio <= 1 else (low, middle)
        return low


def _part(requests: Sequence[FleetRequest], start: float, end: float) -> list[FleetRequest]:
    """Return those sent between two moments, counted from the first; turns whose earlier one is not there go alone."""
    kept = [each for each in requests if start <= each.sent < end]
    numbers = {each.number for each in kept}
    return [replace(each, sent=each.sent - start, after=each.after if each.after in numbers else None) for each in kept]
