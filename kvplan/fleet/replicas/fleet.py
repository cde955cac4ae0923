"""Replicas behind a router: requests sent to them in order, and what they did over time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvplan.fleet.replicas.replica import Replica
from kvplan.fleet.replicas.seen import Seen
from kvplan.fleet.replicas.setup import ReplicaSetup
from kvplan.fleet.requests import FleetRequest
from kvplan.fleet.routers.interface import Router


class Sample(NamedTuple):
    """The fleet at one moment. kv_usage: of all replicas on average. Tokens count from the sample before."""

    at: float
    num_replicas: int
    num_waiting: int
    num_running: int
    kv_usage: float
    num_prompt_tokens: int
    num_hit_tokens: int


@dataclass(slots=True)
class FleetPlay:
    """seen: of requests that ended, by number. was_stopped: before all ended."""

    seen: list[Seen] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    num_preemptions: int = 0
    was_stopped: bool = False


class Fleet:
    """Replicas that share a stream of requests. They may be added and drained at any moment of the play."""

    def __init__(self, setup: ReplicaSetup, num_replicas: int, router: Router, *, sample_seconds: float = 10.0) -> None:
        self.replicas: list[Replica] = []
        self.router = router
        self._ready: list[float] = []
        self._drained: set[int] = set()
        self._sample_seconds = sample_seconds
        for _ in range(num_replicas):
            self.add(setup, 0.0)

    def add(self, setup: ReplicaSetup, ready_at: float) -> int:
        """A replica more, which takes requests from ``ready_at`` on. Return its index."""
        self.replicas.append(Replica(setup, len(self.replicas)))
        self._ready.append(ready_at)
        return len(self.replicas) - 1

    def drain(self, index: int) -> None:
        """The replica gets no further request, and finishes those it has."""
        self._drained.add(index)

    def serving(self, at: float) -> list[Replica]:
        """Those that take requests at ``at``."""
        return [each for each in self.replicas if each.index not in self._drained and self._ready[each.index] <= at]

    def play(
        self,
        requests: Sequence[FleetRequest],
        on_progress: Callable[[int, float], None] | None = None,
        stop: Callable[[list[Seen]], bool] | None = None,
        on_sample: Callable[[Fleet, Sample], None] | None = None,
    ) -> FleetPlay:
        """Send ``requests`` and play until all have ended, or ``stop`` says of those that have so far that it is
        hopeless. on_progress: is told how many have ended, and the moment. on_sample: may add and drain replicas.
        """
        play = FleetPlay()
        coming = [(each.sent, each.number, each) for each in requests if each.after is None]
        followers: dict[int, list[FleetRequest]] = {}
        for each in requests:
            if each.after is not None:
                followers.setdefault(each.after, []).append(each)
        heapq.heapify(coming)
        num_left, sampled, prompts, hits = len(requests), self._sample_seconds, 0, 0
        while num_left:
            events = [each.next_event() for each in self.replicas]
            until = min([coming[0][0] if coming else math.inf, sampled, *events])
            for replica in self.replicas:
                replica.advance(until)
                for seen in replica.take_ended():
                    num_left -= 1
                    play.seen.append(seen)
                    prompts += seen.request.num_prompt_tokens
                    hits += seen.num_hit_tokens
                    for each in followers.pop(seen.request.number, ()):
                        heapq.heappush(coming, (seen.last + each.think_seconds, each.number, each))
            if until >= sampled:
                sample = self._sample(until, prompts, hits)
                play.samples.append(sample)
                sampled, prompts, hits = until + self._sample_seconds, 0, 0
                if on_sample is not None:
                    on_sample(self, sample)
                if on_progress is not None:
                    on_progress(len(play.seen), until)
                if stop is not None and stop(play.seen):
                    play.was_stopped = True
                    break
            while coming and coming[0][0] <= until:
                sent, _, request = heapq.heappop(coming)
                serving = self.serving(sent)
                serving[self.router.choose(request, serving)].deliver(request, sent)
        play.seen.sort(key=lambda seen: seen.request.number)
        play.num_preemptions = sum(each.num_preemptions for each in self.replicas)
        return play

    def _sample(self, at: float, prompts: int, hits: int) -> Sample:
        replicas = self.replicas
        return Sample(
            at,
            len(self.serving(at)),
            sum(each.num_waiting for each in replicas),
            sum(each.num_running for each in replicas),
            sum(each.kv_usage for each in replicas) / len(replicas),
            prompts,
            hits,
        )
