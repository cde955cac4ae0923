"""A load played on all replicas of a deployment behind their router, which a play of one replica takes for granted.

A plan plays one replica with its share of the load: a Poisson process of which each request goes to any of them is one
on each (thinning), and users are split. Where they differ, in tests/estimate/speed/test_groups.py:

* At a rate the share of one replica is what a router that chooses at random gives, and no router is worse. With round
  robin the gaps on each replica vary less than those of a Poisson process: near capacity TTFT's tail is about half as
  long. The least loaded replica is as good for a request as a whole, and worse for its TTFT: requests in flight mostly
  decode, so their number says little of the prompts that wait.
* In a closed loop a router that does not keep users to their replicas lets more of them meet on one. A request as a
  whole takes as long within 3 %, but its TTFT is up to half as long again as where users are split.

The router sees requests that end within a step at its end.
"""

from __future__ import annotations

import math
from typing import Final, Literal

from kvplan.estimate.speed.queueing.arrivals import NEVER, Arrivals
from kvplan.estimate.speed.queueing.figures import PlayedFigures, played_figures
from kvplan.estimate.speed.queueing.front_end import NO_FRONT_END, FrontEnd
from kvplan.estimate.speed.queueing.instance import Sequence
from kvplan.estimate.speed.queueing.loads import PlayedLoad
from kvplan.estimate.speed.queueing.play import InstancePlay
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.simulation.interface import StepClock

Router = Literal["round_robin", "least_loaded"]
MOST_REPLICAS: Final = 16
"""Played together: each end on one of them cuts the steps of all others."""


class _Routed(Arrivals):
    """What one replica's front end is handed by the router. horizon: until when it is known what comes."""

    def __init__(self, clients: Arrivals, load: PlayedLoad, front_end: FrontEnd) -> None:
        super().__init__(load, front_end)
        self._clients = clients
        self.horizon = 0.0
        self.num_in_flight = 0
        self.ended: list[tuple[float, Sequence]] = []

    def send_running(self) -> Sequence:
        self.num_in_flight += 1
        return self._clients.send_running()

    def send(self, now: float) -> None:
        """The router does."""

    def deliver(self, sequence: Sequence) -> None:
        self.num_in_flight += 1
        front_end, sent = self._front_end, sequence.request.sent
        self._busy_until = max(self._busy_until, sent) + front_end.parsing_seconds / front_end.servers
        self._parsed.append((self._busy_until, sequence))

    def note_end(self, now: float, sequence: Sequence) -> None:
        self.num_in_flight -= 1
        self.ended.append((now, sequence))

    def _next_sending(self) -> float:
        return self.horizon


class _Replicas:
    def __init__(self, load: PlayedLoad, rules: SchedulingRules, clock: StepClock, count: int, router: Router) -> None:
        self._load, self._router, self._turn = load, router, 0
        self._clients = Arrivals(load, NO_FRONT_END)
        share = load.shared_by(count)
        self._routed = [_Routed(self._clients, share, rules.front_end) for _ in range(count)]
        self._plays = [InstancePlay(share, rules, clock, arrivals) for arrivals in self._routed]
        self._num_counted = 0

    def run(self) -> PlayedFigures:
        """Until all that count have ended."""
        for each in self._plays:
            each.begin()
        self._clients.begin()
        last = self._load.num_requests - self._load.num_cooldowns
        while self._num_counted < last:
            sending = self._clients.next_event()
            until = min([sending, *(each.earliest_end() for each in self._plays)])
            assert until < NEVER, "requests are in progress or to come"
            self._advance(until)
            self._route(until)
        counted = self._clients.requests[self._load.num_warmups : last]
        preemptions = sum(each.num_preemptions for each in self._plays)
        return played_figures(counted, preemptions, sum(each.max_running for each in self._plays))

    def _advance(self, until: float) -> None:
        last = self._load.num_requests - self._load.num_cooldowns
        for arrivals, each in zip(self._routed, self._plays, strict=True):
            arrivals.horizon = math.nextafter(until, math.inf)
            each.advance(until)
            for ended, sequence in arrivals.ended:
                self._clients.note_end(ended, sequence)
                self._num_counted += sequence.number < last
            arrivals.ended.clear()

    def _route(self, until: float) -> None:
        self._clients.send(until)
        for sequence in self._clients.take(until):
            first = self._turn % len(self._routed)
            in_turn = [*self._routed[first:], *self._routed[:first]]
            is_blind = self._router == "round_robin"
            chosen = in_turn[0] if is_blind else min(in_turn, key=lambda each: each.num_in_flight)
            chosen.deliver(sequence)
            self._turn += 1


def play_replicas(
    load: PlayedLoad, rules: SchedulingRules, clock: StepClock, num_replicas: int, router: Router
) -> PlayedFigures:
    """What all of ``load`` sees of ``num_replicas`` instances by ``rules``; at most ``MOST_REPLICAS`` of them."""
    assert num_replicas <= MOST_REPLICAS, "more take minutes"
    return _Replicas(load, rules, clock, num_replicas, router).run()
