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
from kvplan.fleet.requests import FleetRequest, merged_runs
from kvplan.fleet.routers.interface import Router


class FleetSample(NamedTuple):
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
    samples: list[FleetSample] = field(default_factory=list)
    num_preemptions: int = 0
    was_stopped: bool = False


class Fleet:
    """Replicas that share a stream of requests. They may be added and drained at any moment of the play."""

    def __init__(self, setup: ReplicaSetup, num_replicas: int, router: Router, *, sample_seconds: float = 10.0) -> None:
        self.replicas: list[Replica] = []
        self.router = router
        self._ready: list[float] = []
        self._drained: set[int] = set()
        self._sample_seconds = self._sampled = sample_seconds
        self._coming: list[tuple[float, int, FleetRequest]] = []
        self._followers: dict[int, list[FleetRequest]] = {}
        self._play = FleetPlay()
        self._num_left = self._num_prompt = self._num_hit = 0
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
        """Return the replicas that take requests at ``at``."""
        return [each for each in self.replicas if each.index not in self._drained and self._ready[each.index] <= at]

    def play(
        self,
        requests: Sequence[FleetRequest],
        on_progress: Callable[[int, float], None] | None = None,
        stop: Callable[[list[Seen]], bool] | None = None,
        on_sample: Callable[[Fleet, FleetSample], None] | None = None,
    ) -> FleetPlay:
        """Send ``requests`` and play until all have ended, or ``stop`` says of those that have so far that it is
        hopeless. on_progress: is told how many have ended, and the moment. on_sample: may add and drain replicas.
        """
        self._begin(requests)
        while self._num_left and not self._play.was_stopped:
            coming = self._coming[0][0] if self._coming else math.inf
            self._advance_ended(min(coming, self._sampled))
            coming = self._coming[0][0] if self._coming else math.inf
            if self._sampled <= coming:
                self._take_sample(on_progress, stop, on_sample)
            elif self._num_left:
                self._send()
        play = self._play
        play.seen.sort(key=lambda seen: seen.request.number)
        play.num_preemptions = sum(each.num_preemptions for each in self.replicas)
        return play

    def _begin(self, requests: Sequence[FleetRequest]) -> None:
        self._play, self._num_left = FleetPlay(), len(requests)
        requests = merged_runs(requests)
        numbers = {each.number for each in requests}
        self._coming, self._followers = [], {}
        for each in requests:
            if each.after is not None and each.after in numbers:
                self._followers.setdefault(each.after, []).append(each)
            else:
                self._coming.append((each.sent, each.number, each))
        heapq.heapify(self._coming)
        sent = [number for _, number, _ in self._coming]
        for number in sent:
            sent += [each.number for each in self._followers.get(number, ())]
        assert len(sent) == len(requests), "requests wait for each other"
        self._sampled, self._num_prompt, self._num_hit = self._sample_seconds, 0, 0

    def _advance_ended(self, until: float) -> None:
        """All replicas until then, or until one of them ends a request that another one waits for."""
        if not self._followers:
            if self.router.is_blind and until < self._sampled:
                return  # the one that is chosen is advanced then
            self._advance_all(until)
            return
        while True:
            first = min(self.replicas, key=lambda each: each.next_event())
            event = first.next_event()
            if event > until:
                break
            first.advance(event)
            until = min(until, self._note_ended(first))
        self._advance_all(until)

    def _advance_all(self, until: float) -> None:
        for replica in self.replicas:
            is_due = replica.next_event() <= until
            replica.advance(until)
            if is_due:
                self._note_ended(replica)

    def _note_ended(self, replica: Replica) -> float:
        """Return the moment at which the first request is sent that waited for one that ended."""
        first = math.inf
        for seen in replica.take_ended():
            self._num_left -= 1
            self._play.seen.append(seen)
            self._num_prompt += seen.request.num_prompt_tokens
            self._num_hit += seen.num_hit_tokens
            for each in self._followers.pop(seen.request.number, ()):
                sent = seen.last + each.think_seconds
                first = min(first, sent)
                heapq.heappush(self._coming, (sent, each.number, each))
        return first

    def _take_sample(
        self,
        on_progress: Callable[[int, float], None] | None,
        stop: Callable[[list[Seen]], bool] | None,
        on_sample: Callable[[Fleet, FleetSample], None] | None,
    ) -> None:
        play = self._play
        sample = self._sample(self._sampled, self._num_prompt, self._num_hit)
        play.samples.append(sample)
        self._sampled, self._num_prompt, self._num_hit = self._sampled + self._sample_seconds, 0, 0
        if on_sample is not None:
            on_sample(self, sample)
        if on_progress is not None:
            on_progress(len(play.seen), sample.at)
        play.was_stopped = stop is not None and stop(play.seen)

    def _send(self) -> None:
        sent, _, request = heapq.heappop(self._coming)
        serving = self.serving(sent)
        chosen = serving[self.router.choose(request, serving)]
        chosen.advance(sent)
        self._note_ended(chosen)
        chosen.deliver(request, sent)
        self._note_ended(chosen)

    def _sample(self, at: float, prompts: int, hits: int) -> FleetSample:
        replicas = self.replicas
        return FleetSample(
            at,
            len(self.serving(at)),
            sum(each.num_waiting for each in replicas),
            sum(each.num_running for each in replicas),
            sum(each.kv_usage for each in replicas) / len(replicas),
            prompts,
            hits,
        )
