"""Requests on their way to the engine: when clients send them, and when the server's front end hands them over."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from kvplan.estimate.speed.queueing.figures import PlayedRequest
from kvplan.estimate.speed.queueing.instance import Sequence
from kvplan.estimate.speed.queueing.loads import PlayedLoad
from kvplan.estimate.speed.queueing.rules import FrontEnd

NEVER: Final = math.inf


class Arrivals:
    """requests: all that were sent, in this order. handled_until: when the front end is through with these, in seconds:
    it streams no token before."""

    def __init__(self, load: PlayedLoad, front_end: FrontEnd) -> None:
        self._load, self._front_end = load, front_end
        self._in_flight_limit = load.max_concurrency or load.num_requests
        self._num_ended = 0
        self._arriving: deque[Sequence] = deque()
        self._entering: deque[tuple[float, Sequence]] = deque()
        self._freed: deque[float] = deque()
        self.handled_until = 0.0
        self.requests: list[PlayedRequest] = []

    def send_running(self) -> Sequence:
        """The next request, sent at the beginning and past the front end."""
        number = len(self.requests)
        return self._sequence(number, 0.0)

    def send(self, now: float) -> None:
        """Clients send what is ready at ``now``."""
        while (sent := self._next_sending()) <= now:
            number = len(self.requests)
            if self._is_held_back(number):
                self._freed.popleft()
            sequence = self._sequence(number, sent)
            sequence.found = min(self._load.cached_tokens, sequence.known - 1) if number else 0
            self.handled_until = max(self.handled_until, sent) + self._front_end.seconds(sequence.known)
            self._arriving.append(sequence)
            if self._next_sending() != sent:
                self._hand_over()

    def _sequence(self, number: int, sent: float) -> Sequence:
        prompt, answer = self._load.lengths[number]
        request = PlayedRequest(prompt, answer, sent)
        self.requests.append(request)
        return Sequence(request, number, prompt, num_left=answer)

    def _hand_over(self) -> None:
        """Those that were sent at one moment take turns in the server's event loop, so they are through together."""
        while self._arriving:
            self._entering.append((self.handled_until, self._arriving.popleft()))

    def take(self, until: float) -> list[Sequence]:
        """What the front end was through with by then."""
        found = []
        while self._entering and self._entering[0][0] <= until:
            found.append(self._entering.popleft()[1])
        return found

    def note_end(self, now: float) -> None:
        """A request has its last token: its client may send another."""
        self._num_ended += 1
        self._freed.append(now)

    def next_event(self) -> float:
        """When a client sends the next request, or the engine is handed one."""
        entering = self._entering[0][0] if self._entering else NEVER
        return min(entering, self._next_sending())

    def _is_held_back(self, number: int) -> bool:
        """The first of those that may be in flight are sent when they are ready, others when one has ended."""
        return number >= self._in_flight_limit

    def _next_sending(self) -> float:
        """When the next request is sent; never where none is left, or as many are in flight as may be."""
        number = len(self.requests)
        if number >= self._load.num_requests or number - self._num_ended >= self._in_flight_limit:
            return NEVER
        ready = self._load.arrivals[number]
        return max(ready, self._freed[0]) if self._is_held_back(number) else ready
