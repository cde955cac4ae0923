"""Requests on their way to the engine: when clients send them, and when the server's front end hands them over."""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import Final

from kvplan.estimate.speed.queueing.figures import PlayedRequest
from kvplan.estimate.speed.queueing.front_end import FrontEnd
from kvplan.estimate.speed.queueing.instance import Sequence
from kvplan.estimate.speed.queueing.loads import PlayedLoad

NEVER: Final = math.inf
_REQUEST_SHARE: Final = 1 / 4
"""Of the event loop's time that requests have while it is behind with tokens: assumed. With none, a server that cannot
stream quite as fast as its engine decodes would be handed requests in waves; with half, a burst of short answers runs
too many at once."""


class Arrivals:
    """requests: all that were sent, in this order.

    The front end is an event loop, or several that share all requests evenly and are as busy. It parses all requests
    that were sent at one moment before it turns to anything else, and hands them over one after another, between the
    tokens that it streams: tokens first, unless it cannot stream them as fast as the engine decodes.
    """

    def __init__(self, load: PlayedLoad, front_end: FrontEnd) -> None:
        self._load, self._front_end = load, front_end
        self._in_flight_limit = load.max_concurrency or load.num_requests
        self._num_ended = 0
        self._sent_together: deque[Sequence] = deque()
        self._parsed: deque[tuple[float, Sequence]] = deque()
        self._handed: deque[tuple[float, Sequence]] = deque()
        self._freed: deque[float] = deque()
        self._busy_until = 0.0
        self._last_turn = -math.inf
        self._request_seconds = front_end.request_seconds / front_end.servers
        self._step_seconds = 0.0
        self._pauses = iter(()) if load.think is None else load.think.pauses(load.seed)
        self._returning: list[float] = []
        self.requests: list[PlayedRequest] = []

    def begin(self) -> None:
        """Users who do not think yet and have no request in progress send one now; others are in the midst of pauses,
        which have no memory."""
        think = self._load.think
        if think is not None:
            busy = min(self._load.num_warmups, think.num_users)
            self._returning = sorted(next(self._pauses) for _ in range(think.num_users - busy))
            self._returning[:0] = [0.0] * (busy - len(self.requests))

    def send_running(self) -> Sequence:
        """The next request, sent at the beginning and past the front end."""
        number = len(self.requests)
        return self._sequence(number, 0.0)

    def send(self, now: float) -> None:
        """Clients send what is ready at ``now``."""
        while (sent := self._next_sending()) <= now:
            number = len(self.requests)
            if self._load.think is not None:
                heapq.heappop(self._returning)
            elif self._is_held_back(number):
                self._freed.popleft()
            sequence = self._sequence(number, sent)
            sequence.found = min(self._load.cached_tokens, sequence.known - 1) if number else 0
            self._busy_until = max(self._busy_until, sent) + self._front_end.parsing_seconds / self._front_end.servers
            self._sent_together.append(sequence)
            if self._next_sending() != sent:
                while self._sent_together:
                    self._parsed.append((self._busy_until, self._sent_together.popleft()))

    def _sequence(self, number: int, sent: float) -> Sequence:
        prompt, answer = self._load.lengths[number]
        request = PlayedRequest(prompt, answer, sent)
        self.requests.append(request)
        return Sequence(request, number, prompt, num_left=answer)

    def take(self, until: float) -> list[Sequence]:
        """What the front end had handed over by then."""
        self._hand_over(until)
        found = []
        while self._handed and self._handed[0][0] <= until:
            found.append(self._handed.popleft()[1])
        return found

    def _hand_over(self, until: float) -> None:
        """Turn to those that were parsed before ``until``."""
        while self._parsed and (begun := self._turn()) <= until:
            self._last_turn = begun
            self._busy_until = max(self._busy_until, begun) + self._request_seconds
            self._handed.append((begun + self._front_end.request_seconds, self._parsed.popleft()[1]))

    def _turn(self) -> float:
        """When the event loop turns to the next of those that were parsed: when it has streamed all tokens.

        Where it is more than two steps behind with these, requests have their share of its time.
        """
        parsed = self._parsed[0][0]
        behind = self._busy_until - 2 * self._step_seconds - self._request_seconds
        shared = max(parsed, self._last_turn + self._request_seconds / _REQUEST_SHARE)
        return shared if shared < behind else max(parsed, self._busy_until)

    def stream(self, first_step: float, last_step: float, num_steps: int, num_tokens: int) -> float:
        """When clients have the last step's tokens: of ``num_steps`` steps with ``num_tokens`` each, the first and the
        last of which end at these moments."""
        self._hand_over(first_step)
        seconds = self._front_end.token_seconds * num_tokens / self._front_end.servers
        self._step_seconds = seconds
        begun = max(self._busy_until, first_step)
        self._busy_until = max(begun + num_steps * seconds, last_step + seconds)
        return self._busy_until

    def note_end(self, now: float) -> None:
        """A client has its last token: it may send another request."""
        self._num_ended += 1
        if self._load.think is None:
            self._freed.append(now)
        else:
            heapq.heappush(self._returning, now + next(self._pauses))

    def next_event(self) -> float:
        """When a client sends the next request, or the engine is handed one."""
        return min(self._next_handing_over(), self._next_sending())

    def _next_handing_over(self) -> float:
        if self._handed:
            return self._handed[0][0]
        return self._turn() + self._front_end.request_seconds if self._parsed else NEVER

    def _is_held_back(self, number: int) -> bool:
        """The first of those that may be in flight are sent when they are ready, others when one has ended."""
        return number >= self._in_flight_limit

    def _next_sending(self) -> float:
        """When the next request is sent; never where none is left, or as many are in flight as may be."""
        number = len(self.requests)
        if number >= self._load.num_requests or number - self._num_ended >= self._in_flight_limit:
            return NEVER
        if self._load.think is not None:
            return self._returning[0] if self._returning else NEVER
        ready = self._load.arrivals[number]
        return max(ready, self._freed[0]) if self._is_held_back(number) else ready
